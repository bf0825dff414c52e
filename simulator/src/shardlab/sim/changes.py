"""When it does not fit: the cheapest changes that would, computed.

Tried are all combinations of a higher ZeRO stage, recompute, a smaller micro-batch with more accumulation, and more
devices; the global batch stays where it can. A combination counts only if it is minimal: no part of it fits by itself.
Fewer devices come first, then less time per sample. Devices are doubled until there are enough answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from shardlab.plan import MeshShape, Plan
from shardlab.sim.cost import Cost
from shardlab.sim.memory import Memory, memory
from shardlab.sim.request import Resolved

MOST = 3
MOST_DOUBLINGS = 10
DOUBLINGS_AFTER_A_FIND = 2


@dataclass(frozen=True)
class _Option:
    """A combination of changes: steps up on each of the four scales."""

    zero: int
    recompute: bool
    halvings: int
    doublings: int

    def within(self, other: _Option) -> bool:
        """Whether every part of this combination is in another one."""
        return (
            self.zero in (0, other.zero)
            and self.recompute <= other.recompute
            and self.halvings <= other.halvings
            and self.doublings <= other.doublings
        )


def cheapest(resolved: Resolved) -> tuple[Mapping[str, Any], ...]:
    """Return up to three changes that would fit, cheapest first.

    Returns:
        Objects with `flags` (what to change), `gpus`, `global_batch`, `allocated_bytes`, `reserved_bytes`, and `step_s`
        where time can be said.
    """
    fitting: list[tuple[_Option, Resolved, Memory]] = []
    for option in _options(resolved.plan):
        enough = len(fitting) >= MOST or (fitting and option.doublings > DOUBLINGS_AFTER_A_FIND)
        if enough and option.doublings > fitting[-1][0].doublings:
            break
        if any(smaller.within(option) for smaller, _, _ in fitting):
            continue
        changed = _apply(resolved, option)
        ranks = Cost(changed.plan, changed.machine, changed.nodes).ranks_per_node
        needed = memory(changed.plan, changed.machine.capacity_bytes(ranks), changed.machine.shared)
        if needed.fits:
            fitting.append((option, changed, needed))
    described = [_describe(resolved, *found) for found in fitting]
    described.sort(key=lambda change: (change["gpus"], change.get("step_s", 0.0) / change["global_batch"]))
    return tuple(described[:MOST])


def _options(plan: Plan) -> Iterator[_Option]:
    """Yield combinations, each after those it contains."""
    has_blocks = any(layer.name.startswith("blocks.") for layer in plan.model.layers)
    recompute = (False, True) if plan.recompute == "none" and has_blocks else (False,)
    most = 1 if plan.model.states_only else plan.micro_batch.bit_length()
    halvings = [n for n in range(most) if plan.micro_batch % 2**n == 0]
    for doublings, zero, again, half in product(range(MOST_DOUBLINGS + 1), range(4 - plan.zero), recompute, halvings):
        if plan.zero + zero or doublings == 0:  # without sharding more devices do not help
            yield _Option(zero, again, half, doublings)


def _apply(resolved: Resolved, option: _Option) -> Resolved:
    plan, factor = resolved.plan, 2**option.doublings
    accumulation = plan.accumulation * 2**option.halvings
    changed = replace(
        plan,
        mesh=MeshShape({"dp": plan.dp * factor}),
        zero=plan.zero + option.zero,
        recompute="full" if option.recompute else plan.recompute,
        micro_batch=plan.micro_batch // 2**option.halvings,
        accumulation=accumulation // factor if accumulation % factor == 0 else accumulation,
    )
    nodes = -(-changed.dp // int(resolved.machine.devices_per_node.value)) if option.doublings else resolved.nodes
    return replace(resolved, plan=changed, nodes=max(nodes, resolved.nodes))


def _describe(before: Resolved, option: _Option, after: Resolved, needed: Memory) -> dict[str, Any]:
    from shardlab.sim.answer import step_times

    plan = after.plan
    flags: dict[str, Any] = {}
    if option.zero:
        flags["zero"] = plan.zero
    if option.recompute:
        flags["recompute"] = plan.recompute
    if option.halvings:
        flags["micro_batch"] = plan.micro_batch
    if option.doublings:
        flags["gpus"] = plan.dp
    if option.halvings or plan.global_batch != before.plan.global_batch:
        flags["global_batch"] = plan.global_batch
    found: dict[str, Any] = {"flags": flags, "gpus": plan.dp, "global_batch": plan.global_batch,
                             "allocated_bytes": needed.allocated, "reserved_bytes": needed.reserved}  # fmt: skip
    cost = Cost(plan, after.machine, after.nodes)
    if not plan.model.states_only and cost.peak_flops_per_s is not None:
        found["step_s"] = step_times(cost).step
    return found
