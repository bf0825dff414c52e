"""What a rank holds between steps, by category, to the byte.

With N dp ranks, bytes per parameter and rank (compute c, reduce r, accumulate a, master m bytes; K moments; the master
copy counts only where its dtype differs from the compute dtype):

    stage   parameters   gradients   optimizer          buffers
    0       c            a           (copy + K) m
    1       c            r           (copy + K) m / N   a / N   the sum's shard, beside the whole local gradients
    2       c            a / N       (copy + K) m / N
    3       c / N        a / N       (copy + K) m / N

Flat buffers round up: each parameter and each shard starts on a 64-byte line. `share_bytes` is the table above,
`held_bytes` what is really held, and the difference is reported as padding.

Source: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), section 3 and figure 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.plan.dtypes import itemsize
from shardlab.plan.flat import FlatGroup, flat_groups
from shardlab.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Holding:
    """One thing that a rank holds between steps.

    Args:
        category: parameters, gradients, optimizer or buffers.
        what: Name of the thing.
        dtype: Its dtype.
        per_param_bytes: Bytes per parameter before sharding.
        shards: Ranks that share it; 1 where every rank holds the whole.
        share_bytes: Parameters x bytes per parameter / shards, rounded down.
        held_bytes: Bytes really held, with alignment and rounding.
    """

    category: str
    what: str
    dtype: str
    per_param_bytes: int
    shards: int
    share_bytes: int
    held_bytes: int

    @property
    def padding_bytes(self) -> int:
        """Bytes held beyond the share; negative on a rank whose shards are the emptier ones."""
        return self.held_bytes - self.share_bytes


@dataclass(frozen=True, slots=True)
class _Thing:
    """A kind of state: the row of the table above.

    Args:
        category: Category of the row.
        what: Name.
        dtype: dtype.
        first_sharded: Lowest stage at which it is sharded; 4 for never.
        flat: Whether it lies in flat buffers with padding, or per parameter without.
    """

    category: str
    what: str
    dtype: str
    first_sharded: int
    flat: bool = True


def _things(plan: Plan) -> list[_Thing]:
    """Return the rows of trained parameters."""
    use = plan.precision
    found = [
        _Thing("parameters", "parameters", use.compute, 3),
        _Thing("gradients", "gradients", use.reduce if plan.zero == 1 else use.accumulate, 2),
    ]
    if use.master != use.compute:
        found.append(_Thing("optimizer", "master weights", use.master, 1))
    for at in range(plan.optimizer_spec.moments):
        found.append(_Thing("optimizer", f"moment {at + 1}", use.master, 1, flat=False))
    return found


def _real_numel(group: FlatGroup, sharded: bool, rank: int) -> int:
    layout = group.layout
    return sum(piece.numel for piece in layout.pieces(rank)) if sharded else layout.param_numel


def _held_bytes(thing: _Thing, groups: list[FlatGroup], sharded: bool, rank: int) -> int:
    if not thing.flat:
        return sum(_real_numel(group, sharded, rank) for group in groups) * itemsize(thing.dtype)
    return sum(group.shard_bytes(thing.dtype) if sharded else group.whole_bytes(thing.dtype) for group in groups)


def holdings(plan: Plan, rank: int = 0) -> tuple[Holding, ...]:
    """Return what a rank holds between steps.

    Args:
        plan: The plan.
        rank: dp rank; rank 0 holds the fullest shards, since padding gathers at the end of a flat buffer.

    Raises:
        ValueError: If there is no such rank.
    """
    if not 0 <= rank < plan.dp:
        raise ValueError(f"dp rank {rank} is outside 0..{plan.dp - 1}")
    flat = [group for groups in flat_groups(plan).values() for group in groups]
    trained = [group for group in flat if group.trained]
    frozen = [group for group in flat if not group.trained]
    found = [_holding(plan, thing, trained, rank) for thing in _things(plan)]
    if frozen:
        found.append(_holding(plan, _Thing("parameters", "frozen parameters", plan.precision.compute, 3), frozen, rank))
    if plan.zero == 1:
        found.append(
            _holding(plan, _Thing("buffers", "reduced gradient shard", plan.precision.accumulate, 1), trained, rank)
        )
    if plan.model.buffers:
        num_bytes = sum(buffer.nbytes for buffer in plan.model.buffers)
        found.append(Holding("buffers", "rotary tables", "fp32", 0, 1, num_bytes, num_bytes))
    if plan.optimizer_spec.counters and not plan.model.states_only:
        found.append(_counters(plan, trained, rank))
    return tuple(found)


def _holding(plan: Plan, thing: _Thing, groups: list[FlatGroup], rank: int) -> Holding:
    sharded = plan.zero >= thing.first_sharded
    shards, size = plan.dp if sharded else 1, itemsize(thing.dtype)
    numel = sum(group.layout.param_numel for group in groups)
    held = _held_bytes(thing, groups, sharded, rank)
    return Holding(thing.category, thing.what, thing.dtype, size, shards, numel * size // shards, held)


def _counters(plan: Plan, groups: list[FlatGroup], rank: int) -> Holding:
    """Return the optimizer's step counters: one fp32 scalar per parameter, or per piece in this rank's shards."""
    if plan.zero == 0:
        num = sum(len(group.layout.specs) for group in groups)
    else:
        num = sum(len(group.layout.pieces(rank)) for group in groups)
    num_bytes = 4 * num * plan.optimizer_spec.counters
    return Holding("optimizer", "step counters", "fp32", 0, 1, num_bytes, num_bytes)


def state_bytes(plan: Plan, rank: int = 0) -> dict[str, int]:
    """Return bytes between steps: parameters, gradients, optimizer, buffers, padding; they sum to the total.

    Args:
        plan: The plan.
        rank: dp rank.
    """
    found = dict.fromkeys(("parameters", "gradients", "optimizer", "buffers", "padding"), 0)
    for holding in holdings(plan, rank):
        found[holding.category] += holding.share_bytes
        found["padding"] += holding.padding_bytes
    return found


def held_bytes(plan: Plan, rank: int = 0) -> dict[str, int]:
    """Return bytes really held between steps by category, each with its own padding inside.

    Args:
        plan: The plan.
        rank: dp rank.
    """
    found = dict.fromkeys(("parameters", "gradients", "optimizer", "buffers"), 0)
    for holding in holdings(plan, rank):
        found[holding.category] += holding.held_bytes
    return found
