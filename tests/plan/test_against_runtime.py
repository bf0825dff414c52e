"""The description held against the runtime: calls action by action, state bytes, peak memory.

Predicted from the plan alone on one side; on the other what the sharded reference model did on every lockstep rank.
"""

import gc
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from shardlab.comm import run_ranks
from shardlab.comm.record import recording
from shardlab.engine.build import build
from shardlab.plan import MeshShape, Plan, Precision, calls, compile_plan, footprint, gpt, held_bytes, llama, mlp
from shardlab.zero import shard
from shardlab.zero.account import held_bytes as counted_bytes
from shardlab.zero.account import pooled_bytes
from shardlab.zero.precision import Precision as ZeroPrecision

MODELS = {
    "gpt": gpt(layers=3, hidden=24, heads=2, vocab=37, positions=8),
    "gpt-untied": gpt(layers=2, hidden=24, heads=2, vocab=37, positions=8, tied=False, bias=False),
    "llama": llama(layers=2, hidden=24, heads=4, kv_heads=2, ffn=40, vocab=37, positions=8, qkv_bias=True),
    "mlp": mlp(widths=[5, 7, 3]),
}
FP32, MIXED, PAPER = Precision(), Precision("bf16", "fp32", "fp32", "fp32"), Precision.named("bf16")


@dataclass
class Seen:
    """What one rank saw in its second step."""

    calls: list[tuple[str, str, int, int]]
    held: dict[str, int]
    peak_bytes: int


def train(mesh: Any, plan: Plan, measure: bool) -> Seen:
    """Two steps on one rank; the second is watched."""
    torch.manual_seed(0)
    use = plan.precision
    precision = None if use == FP32 else ZeroPrecision(use.compute, use.reduce, use.accumulate, use.master)
    model, optimizer = shard(
        build(plan.model, plan.recompute), lambda params: torch.optim.AdamW(params, lr=1e-3), mesh["dp"],
        stage=plan.zero, precision=precision,
    )  # fmt: skip
    if plan.model.family == "mlp":
        batch = (torch.randn(plan.micro_batch, 5), torch.randn(plan.micro_batch, 3))
        batch = (batch[0], batch[1].to(torch.bfloat16 if use.compute == "bf16" else torch.float32))
    else:
        vocab = plan.model.config["vocab"]
        batch = tuple(torch.randint(0, vocab, (plan.micro_batch, plan.seq)) for _ in range(2))  # type: ignore[assignment]

    def step() -> None:
        for _ in range(plan.accumulation):
            model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    before = sum(counted_bytes(model).values()) + pooled_bytes(model)
    peak = before + allocated_peak(step) if measure else 0
    with recording(mesh["dp"].recorder) as ledger:
        step()
    spans = [(s.op, s.name, s.payload_bytes, s.wire_bytes) for s in ledger if s.op != "control"]
    return Seen(spans, counted_bytes(model), peak)


def allocated_peak(step: Any) -> int:
    """Most bytes that a step has allocated at once, from the allocator's events.

    What was allocated before the profiler started is freed without an event, so what is left over at the end replaced
    as much of it and is taken off.
    """
    gc.collect()  # what an earlier test left must not be freed while this one counts
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
            step()
    finally:
        gc.enable()
    live = peak = 0
    for event in watched.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak - live


def plan_of(name: str, dp: int, zero: int, precision: Precision, **more: Any) -> Plan:
    seq = 1 if name == "mlp" else 8
    return Plan(MODELS[name], MeshShape({"dp": dp}), zero=zero, precision=precision, seq=seq, micro_batch=2, **more)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dp", [1, 3])
@pytest.mark.parametrize(
    ("name", "precision", "recompute"),
    [("gpt", MIXED, "none"), ("gpt-untied", FP32, "full"), ("llama", PAPER, "full"), ("mlp", FP32, "none")],
    ids=["gpt", "gpt-untied", "llama", "mlp"],
)
def test_calls_and_state_bytes(name: str, precision: Precision, recompute: str, dp: int, zero: int) -> None:
    plan = plan_of(name, dp, zero, precision, recompute=recompute, accumulation=2)
    program = compile_plan(plan)
    for rank, seen in enumerate(run_ranks({"dp": dp}, train, plan, False)):
        stated = [call for action in program for call in calls(action, plan, rank)]
        assert seen.calls == [(call.op, call.name, call.payload_bytes, call.wire_bytes) for call in stated]
        assert seen.held == held_bytes(plan, rank)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_peak_is_a_close_bound(family: str, recompute: str, zero: int) -> None:
    sizes: dict[str, Any] = {"layers": 3, "hidden": 128, "heads": 4, "vocab": 1000, "positions": 64, "ffn": 384}
    model = gpt(**sizes) if family == "gpt" else llama(**sizes)
    plan = Plan(model, zero=zero, seq=64, micro_batch=8, accumulation=2, recompute=recompute, precision=MIXED)
    (seen,) = run_ranks({"dp": 1}, train, plan, True)
    predicted = footprint(compile_plan(plan).actions, plan).total_bytes
    assert seen.peak_bytes <= predicted <= seen.peak_bytes * 1.001
