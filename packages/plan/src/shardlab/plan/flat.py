"""The flat buffers of a plan: per unit one group per (dtype, trained or not), each with a Layout over the dp ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardlab.plan.dtypes import itemsize
from shardlab.plan.layout import Layout
from shardlab.plan.plan import Plan


@dataclass(frozen=True)
class FlatGroup:
    """One flat buffer of a unit.

    Args:
        layout: Where its parameters lie, in the compute dtype.
        trained: Whether they are trained.
    """

    layout: Layout
    trained: bool

    def whole_bytes(self, dtype: str) -> int:
        """Bytes of the whole buffer, padding included, if its elements had another dtype."""
        return self.layout.numel * itemsize(dtype)

    def shard_bytes(self, dtype: str) -> int:
        """Bytes of one shard, padding included, if its elements had another dtype."""
        return self.layout.shard_numel * itemsize(dtype)


@lru_cache(maxsize=64)
def _cached(key: _Key) -> Mapping[str, tuple[FlatGroup, ...]]:
    plan = key.plan
    model, shards, dtype = plan.model, plan.dp, plan.precision.compute
    return {
        unit.name: tuple(FlatGroup(Layout.of(group, shards), group[0].requires_grad) for group in unit.groups(dtype))
        for unit in model.units
    }


class _Key:
    """A plan as a cache key: only what the flat buffers depend on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._key = (plan.model, plan.dp, plan.precision.compute)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._key == other._key


def flat_groups(plan: Plan) -> Mapping[str, tuple[FlatGroup, ...]]:
    """Return the flat groups of every unit of a plan, by unit name in registration order."""
    return _cached(_Key(plan))
