"""What an action costs before any machine is known: floating-point operations and wire bytes.

Wire bytes are those this rank posts to other ranks, N members in the group:

    all_gather      own shard x (N - 1)
    reduce_scatter  one chunk x (N - 1)
    all_reduce      all but the own piece, then the own piece x (N - 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardlab.plan.action import Action, Op
from shardlab.plan.blocks import backward_flops, forward_flops
from shardlab.plan.dtypes import itemsize
from shardlab.plan.flat import FlatGroup, flat_groups
from shardlab.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a communicator.

    Args:
        op: As in `Span.op`.
        name: Unit it is made for.
        axis: Mesh axis.
        payload_bytes: Bytes of the larger buffer handed over.
        wire_bytes: Bytes this rank posts to other ranks.
    """

    op: str
    name: str
    axis: str
    payload_bytes: int
    wire_bytes: int


def piece_numel(numel: int, size: int, index: int) -> int:
    """Return the length of one member's piece of a flat buffer: the first `numel % size` get one element more."""
    return numel // size + (index < numel % size)


def all_gather_bytes(shard_bytes: int, size: int) -> int:
    """Return the wire bytes of an all-gather on one rank."""
    return shard_bytes * (size - 1)


def reduce_scatter_bytes(chunk_bytes: int, size: int) -> int:
    """Return the wire bytes of a reduce-scatter on one rank."""
    return chunk_bytes * (size - 1)


def all_reduce_bytes(numel: int, element_bytes: int, size: int, index: int) -> int:
    """Return the wire bytes of an all-reduce on one rank: scatter the pieces, then gather the sums."""
    own = piece_numel(numel, size, index)
    return (numel - own + own * (size - 1)) * element_bytes


def calls(action: Action, plan: Plan, rank: int = 0) -> tuple[Call, ...]:
    """Return the communicator calls of an action, one per flat group.

    Args:
        action: The action.
        plan: The plan it comes from.
        rank: dp rank that posts them.
    """
    if action.op not in (Op.GATHER, Op.REDUCE, Op.ALLREDUCE):
        return ()
    groups = flat_groups(plan)[action.name]
    if action.op is not Op.GATHER or plan.zero < 3:
        groups = tuple(group for group in groups if group.trained)
    return tuple(_call(action, plan, group, rank) for group in groups if group.layout.numel)


def _call(action: Action, plan: Plan, group: FlatGroup, rank: int) -> Call:
    size, use = plan.dp, plan.precision
    if action.op is Op.GATHER:
        wire = all_gather_bytes(group.shard_bytes(use.compute), size)
        return Call("all_gather", action.name, "dp", group.whole_bytes(use.compute), wire)
    whole = group.whole_bytes(use.reduce)
    if action.op is Op.REDUCE:
        wire = reduce_scatter_bytes(group.shard_bytes(use.reduce), size)
        return Call("reduce_scatter", action.name, "dp", whole, wire)
    wire = all_reduce_bytes(group.layout.numel, itemsize(use.reduce), size, rank)
    return Call("all_reduce", action.name, "dp", whole, wire)


def wire_bytes(actions: Iterable[Action], plan: Plan, rank: int = 0) -> dict[str, int]:
    """Return the bytes that a rank posts to others, by axis, over some actions."""
    found: dict[str, int] = {}
    for action in actions:
        for call in calls(action, plan, rank):
            found[call.axis] = found.get(call.axis, 0) + call.wire_bytes
    return found


def flops(action: Action, plan: Plan) -> int:
    """Return the floating-point operations of matrix products in an action on one rank."""
    if action.op not in (Op.F, Op.B, Op.R):
        return 0
    layer = plan.model.layer(action.name)
    return backward_flops(layer, plan.batch) if action.op is Op.B else forward_flops(layer, plan.batch)


def model_flops(plan: Plan) -> int:
    """Return the floating-point operations of one step over all ranks, without recompute: forward and backward."""
    once = sum(forward_flops(layer, plan.batch) + backward_flops(layer, plan.batch) for layer in plan.model.layers)
    return once * plan.accumulation * plan.dp


def step_bytes(plan: Plan) -> int:
    """Return the bytes that an optimizer step reads and writes on one rank.

    Gradients are read once; moments and what is updated are read and written; the compute copy, if apart, is written.
    """
    use, spec = plan.precision, plan.optimizer_spec
    trained = [g for groups in flat_groups(plan).values() for g in groups if g.trained]
    numel = sum(g.layout.shard_numel if plan.zero else g.layout.param_numel for g in trained)
    master = itemsize(use.master)
    per_element = itemsize(use.accumulate) + 2 * master * (1 + spec.moments)
    per_element += itemsize(use.compute) if use.compute != use.master else 0
    return numel * per_element
