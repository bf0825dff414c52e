"""The answer to `zsim estimate`: one object from which both the text and the JSON are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardlab.plan import Figure, Holding, Plan, compile_plan, model_flops, wire_bytes
from shardlab.plan.blocks import forward_flops
from shardlab.sim import cost as costs
from shardlab.sim.cost import Cost
from shardlab.sim.memory import RESERVED, Memory, memory
from shardlab.sim.replay import Times, replay, times
from shardlab.sim.request import Request, Resolved, resolve

SCHEMA = "shardlab.estimate/1"
_LINKS = ("intra_node.bytes_per_s", "intra_node.latency_s", "inter_node.bytes_per_s", "inter_node.latency_s")
_FIGURES = ("memory_bytes_per_s", "matmul_fraction", "devices_per_node", *_LINKS)


@dataclass(frozen=True)
class Estimate:
    """A prediction for one plan on one machine.

    Args:
        resolved: What was asked, made definite.
        memory: Bytes of the worst rank.
        times: Seconds of a step, or None where they cannot be said.
        no_time: Why there are no times, or ''.
        wire_bytes: Bytes a rank posts to others per step, by axis; empty for a bare count.
        changes: When it does not fit: the cheapest changes that would, as JSON-able objects.
    """

    resolved: Resolved
    memory: Memory
    times: Times | None
    no_time: str
    wire_bytes: Mapping[str, int]
    changes: tuple[Mapping[str, Any], ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the worst rank has room."""
        return self.memory.fits

    @property
    def verdict(self) -> str:
        """`fits` or `does not fit`."""
        return "fits" if self.fits else "does not fit"

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "inputs": self._inputs(),
            "result": self._result(),
            "assumptions": list(self.assumptions()),
        }

    def _inputs(self) -> dict[str, Any]:
        plan, machine = self.resolved.plan, self.resolved.machine
        return {"plan": plan.to_dict(), "gpus": plan.mesh.size, "nodes": self.resolved.nodes,
                "global_batch": plan.global_batch, "machine": machine.to_dict()}  # fmt: skip

    def _result(self) -> dict[str, Any]:
        per_rank = {**self.memory.by_category, "allocated": self.memory.allocated, "reserved": self.memory.reserved}
        found: dict[str, Any] = {
            "model": model_facts(self.resolved.plan),
            "memory": {
                "per_rank_bytes": per_rank,
                "capacity_bytes": self.memory.capacity,
                "stages": [{"stage": 0, "per_rank_bytes": per_rank}],
                "peak_at": self.memory.at,
                "bytes_per_parameter": [_multiplier(held) for held in self.memory.holdings if held.per_param_bytes],
            },
        }
        if not self.resolved.plan.model.states_only:
            found["wire_bytes"] = dict(self.wire_bytes)
        if self.times is not None:
            found |= self._speed(self.times)
        if self.changes:
            found["changes"] = [dict(change) for change in self.changes]
        return found

    def _speed(self, spent: Times) -> dict[str, Any]:
        plan, gpus = self.resolved.plan, self.resolved.plan.mesh.size
        tokens_per_s = plan.global_batch * plan.seq / spent.step
        flops_per_s = model_flops(plan) / spent.step / gpus
        peak = Cost(plan, self.resolved.machine, self.resolved.nodes).peak_flops_per_s
        assert peak is not None  # else there would be no times
        return {
            "time_s": {"step": spent.step, "compute": spent.compute, "exposed_communication": spent.exposed,
                       "optimizer": spent.optimizer},
            "throughput": {"tokens_per_s": tokens_per_s, "tokens_per_s_per_gpu": tokens_per_s / gpus,
                           "model_flops_per_s_per_gpu": flops_per_s, "mfu": flops_per_s / peak},
        }  # fmt: skip

    def assumptions(self) -> tuple[str, ...]:
        """Return what the prediction rests on, as sentences."""
        plan, machine = self.resolved.plan, self.resolved.machine
        found = list(self.resolved.chosen)
        if plan.model.states_only:
            found.append("a bare count: states only; activations, buffers and time need a model")
        else:
            checked = "as counted on CPU kernels" if machine.shared else "by formula for CUDA kernels"
            found.append(f"activations: reference blocks with flash attention, {checked}")
            found.append("temporaries are bounds; an optimizer that updates all weights at once needs more in its step")
        if not machine.shared:
            found.append(_sentence("allocator", RESERVED))
        if self.no_time:
            found.append(f"no time: {self.no_time}")
        elif self.times is not None:
            found.append("time is rough: a two-lane replay of the step with the factors below")
            found.append(_sentence("links", costs.LINK_FRACTION))
            found.append(_sentence("element-wise", costs.ELEMENTWISE))
            if not machine.shared:
                found.append(_sentence("training step", costs.TRAINING_FRACTION))
                found.append(_sentence("launch", costs.LAUNCH_S))
        return (*found, *self._machine_sentences())

    def _machine_sentences(self) -> Iterator[str]:
        """Yield the figures of the machine that were used."""
        machine, peak = self.resolved.machine, f"peak_flops_per_s.{self.resolved.plan.precision.compute}"
        for name, figure in machine.figures().items():
            if name == "memory_bytes" or (self.times is not None and name in (peak, *_FIGURES)):
                yield _sentence(f"{machine.name} {name}", figure)


def _multiplier(held: Holding) -> dict[str, Any]:
    return {"category": held.category, "what": held.what, "dtype": held.dtype, "bytes": held.per_param_bytes,
            "divided_by": held.shards}  # fmt: skip


def _sentence(name: str, figure: Figure) -> str:
    note = f": {figure.note}" if figure.note else ""
    url = f" <{figure.url}>" if figure.url else ""
    return f"{name} = {figure.value:g} ({figure.source}{note}){url}"


def model_facts(plan: Plan) -> dict[str, Any]:
    """Return counts of a model: parameters by part, and training flops per token without recompute."""
    model = plan.model
    parts = {"embedding": 0, "blocks": 0, "head": 0, "norm": 0, "other": 0}
    kinds = {"embedding": "embedding", "positions": "embedding", "gpt_block": "blocks", "llama_block": "blocks",
             "linear_head": "head", "layer_norm": "norm", "rms_norm": "norm"}  # fmt: skip
    for layer in model.layers:
        parts[kinds.get(layer.kind, "other")] += layer.numel
    found: dict[str, Any] = {
        "parameters": model.numel,
        "parameters_by_part": {name: numel for name, numel in parts.items() if numel},
    }
    if model.family in ("gpt", "llama"):
        found["vocabulary_parameters"] = sum(
            layer.numel for layer in model.layers if layer.kind in ("embedding", "linear_head")
        )
        once = sum(forward_flops(layer, replace(plan.batch, rows=1)) for layer in model.layers)
        found["training_flops_per_token"] = 3 * once // plan.seq
    return found


def predict(resolved: Resolved) -> Estimate:
    """Predict memory, wire bytes and time of a definite request."""
    plan, machine = resolved.plan, resolved.machine
    cost = Cost(plan, machine, resolved.nodes)
    needed = memory(plan, machine.capacity_bytes(cost.ranks_per_node), machine.shared)
    if plan.model.states_only:
        return Estimate(resolved, needed, None, "a bare count has no layers to time", {})
    if cost.peak_flops_per_s is None:
        reason = f"{machine.title} has no units for {plan.precision.compute}"
        return Estimate(resolved, needed, None, reason, step_wire_bytes(plan))
    return Estimate(resolved, needed, step_times(cost), "", step_wire_bytes(plan))


def step_wire_bytes(plan: Plan) -> dict[str, int]:
    """Return the bytes that rank 0 posts to others in a step, by axis."""
    one, two = ({}, {}) if plan.dp == 1 else _first_two(plan)
    return {axis: one[axis] + (plan.accumulation - 1) * (two[axis] - one[axis]) for axis in one} or {"dp": 0}


def _first_two(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    plans = (replace(plan, accumulation=passes) for passes in (1, 2))
    one, two = (wire_bytes(compile_plan(each), each) for each in plans)
    return one, two


def step_times(cost: Cost) -> Times:
    """Return the seconds of a step: the first two micro-batches are replayed, all later ones repeat the second."""
    passes = min(cost.plan.accumulation, 2)
    found = [
        times(replay(compile_plan(plan), replace(cost, plan=plan)))
        for plan in (replace(cost.plan, accumulation=n) for n in range(1, passes + 1))
    ]
    if passes == 1:
        return found[0]
    first, second = found
    more = cost.plan.accumulation - 1
    return Times(
        first.step + more * (second.step - first.step),
        first.compute + more * (second.compute - first.compute),
        first.optimizer,
    )


def answer(request: Request) -> Estimate:
    """Answer a request; where it does not fit, with the cheapest changes that would.

    Raises:
        RequestError: If the request is faulty or names what is not built yet.
    """
    from shardlab.sim.changes import cheapest

    found = predict(resolve(request))
    return found if found.fits else replace(found, changes=cheapest(found.resolved))
