"""The flat buffers of a plan: per unit one group per (dtype, trained or not), each with a Layout.

A buffer is cut over the dp ranks where something in it is sharded: what is trained from stage 1 on, everything at stage
3. Elsewhere it is one shard, so that nothing is rounded up to the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shardlab.plan.dtypes import itemsize
from shardlab.plan.layout import Layout
from shardlab.plan.model import ModelSpec
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


def flat_groups(plan: Plan) -> Mapping[str, tuple[FlatGroup, ...]]:
    """Return the flat groups of every unit of a plan, by unit name in registration order."""
    trained, frozen = plan.dp if plan.zero else 1, plan.dp if plan.zero == 3 else 1
    return _groups(plan.model, plan.precision.compute, trained, frozen)


@lru_cache(maxsize=64)
def _groups(model: ModelSpec, dtype: str, trained: int, frozen: int) -> Mapping[str, tuple[FlatGroup, ...]]:
    found = {}
    for unit in model.units:
        groups = unit.groups(dtype)
        shards = [trained if group[0].requires_grad else frozen for group in groups]
        found[unit.name] = tuple(
            FlatGroup(Layout.of(group, count), group[0].requires_grad)
            for group, count in zip(groups, shards, strict=True)
        )
    return found
