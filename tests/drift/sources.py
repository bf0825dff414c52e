"""One quantity from three sources: the formula, the dry run, the real run.

formula    shardlab.plan: Layout, Program, the tables of state and work
dry        shardlab.engine.dry: the real code on fake tensors, one rank, a communicator that only counts
real       the same code on real tensors on N ranks; the backend counts what it posts, the account adds up storages
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from shardlab.comm import Mesh, recording
from shardlab.engine.dry import dry_run, run_step, saved_for_backward, shard_plan
from shardlab.plan import (
    Ledger,
    MeshShape,
    ModelSpec,
    Op,
    Plan,
    Precision,
    calls,
    compile_plan,
    footprint,
    gpt,
    held_bytes,
    llama,
    mlp,
    state_bytes,
)
from shardlab.plan.blocks import checkpoint_tensors, saved_tensors
from shardlab.zero import account

MODELS: dict[str, ModelSpec] = {
    "mlp": mlp(widths=[20, 64, 48, 10]),
    "gpt": gpt(layers=3, hidden=16, heads=2, vocab=37, positions=8),
    "llama": llama(layers=2, hidden=24, heads=4, kv_heads=2, ffn=40, vocab=29, positions=8),
}
BF16 = Precision("bf16", "fp32", "fp32", "fp32")

Call = tuple[str, str, int | None, int, int]


def plan_of(model: str, ranks: int, **more: Any) -> Plan:
    """A plan of a small model."""
    sizes = {"seq": 1, "micro_batch": 3} if model == "mlp" else {"seq": 7, "micro_batch": 2}
    return Plan(MODELS[model], MeshShape({"dp": ranks}), **{**sizes, **more})


@dataclass(frozen=True)
class Counts:
    """What one source says of one rank.

    Args:
        state: bytes between steps by category, padding apart.
        held: the same, each with its padding.
        calls: every communicator call of a step in order: op, unit, micro-batch, payload bytes, wire bytes.
        saved_bytes: bytes of activations that autograd keeps when a forward has ended.
    """

    state: dict[str, int]
    held: dict[str, int]
    calls: tuple[Call, ...]
    saved_bytes: int

    @property
    def wire_bytes(self) -> int:
        """Bytes posted to other ranks."""
        return sum(call[4] for call in self.calls)


def formula(plan: Plan, rank: int) -> Counts:
    """What the plan says."""
    program = compile_plan(plan)
    found: list[Call] = []
    for action in program:
        micro_batch = action.micro_batch if action.op in (Op.REDUCE, Op.ALLREDUCE) else None
        for call in calls(action, plan, rank):
            found.append((call.op, call.name, micro_batch, call.payload_bytes, call.wire_bytes))
    return Counts(state_bytes(plan, rank), held_bytes(plan, rank), tuple(found), _saved_bytes(plan))


def _saved_bytes(plan: Plan) -> int:
    """What all layers keep when forward ends; `footprint` also counts what one recomputed block keeps in backward."""
    found = 0
    for layer in plan.model.layers:
        kept = checkpoint_tensors if layer.name in plan.recomputed else saved_tensors
        found += sum(tensor.nbytes for tensor in kept(layer, plan.batch))
    if plan.recompute == "none":
        assert footprint(compile_plan(plan).actions, plan).saved_bytes == found
    return found


def dry(plan: Plan, rank: int) -> Counts:
    """What the dry run counts."""
    run = dry_run(plan, rank)
    return Counts(run.state, run.held, _calls(run.ledger), run.saved_bytes)


def real(mesh: Mesh, plan: Plan) -> Counts:
    """What this rank of a real mesh counts in its second step."""
    torch.manual_seed(0)
    model, optimizer = shard_plan(plan, mesh)
    run_step(plan, model, optimizer)
    with recording(mesh.recorder) as ledger, saved_for_backward(model) as saved:
        run_step(plan, model, optimizer, saved.note)
    return Counts(account.state_bytes(model), account.held_bytes(model), _calls(ledger), saved.most_bytes)


def _calls(ledger: Ledger) -> tuple[Call, ...]:
    """The calls of a ledger in the order of their starts; a gather's label says nothing of micro-batches."""
    reduces = ("reduce_scatter", "all_reduce")
    return tuple(
        (span.op, span.name, span.micro_batch if span.op in reduces else None, span.payload_bytes, span.wire_bytes)
        for span in sorted(ledger, key=lambda span: span.start_s)
        if span.op != "control"
    )


def differences(**sources: Counts) -> list[str]:
    """Where sources of one rank disagree, one line each; none if they agree to the byte."""
    (first_name, first), *others = sources.items()
    found = []
    for name, other in others:
        for item in fields(Counts):
            one, two = getattr(first, item.name), getattr(other, item.name)
            if one != two:
                found.append(f"{item.name}: {first_name} {_first(one, two)} {name} {_first(two, one)}")
    return found


def _first(one: Any, two: Any) -> Any:
    """The part of one value that differs."""
    if isinstance(one, dict):
        return {key: value for key, value in one.items() if two.get(key) != value}
    if isinstance(one, tuple):
        at = next(
            (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
        )
        return f"{len(one)} calls, the {at}th {one[at : at + 1]}"
    return one
