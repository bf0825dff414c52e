"""Flat groups of a plan: one layout per unit, in the compute dtype, over the dp ranks."""

from dataclasses import replace

import pytest

from shardlab.plan import ParamSpec, flat_groups
from tests.plan.plans import BF16, make


def test_groups() -> None:
    plan = make(dp=3, zero=2, precision=BF16)
    groups = flat_groups(plan)
    assert list(groups) == [unit.name for unit in plan.model.units]
    (group,) = groups["blocks.0"]
    assert (group.layout.shards, group.layout.dtype, group.layout.align, group.trained) == (3, "bf16", 32, True)
    assert group.whole_bytes("fp32") == 2 * group.layout.nbytes
    assert group.shard_bytes("bf16") * 3 == group.layout.nbytes


@pytest.mark.parametrize(("zero", "trained", "frozen"), [(0, 1, 1), (1, 3, 1), (2, 3, 1), (3, 3, 3)])
def test_only_what_is_sharded_is_cut(zero: int, trained: int, frozen: int) -> None:
    base = make(dp=3, zero=zero)
    first, *rest = base.model.layers
    params = tuple(ParamSpec(p.name, p.shape, p.dtype, requires_grad=False) for p in rest[0].params)
    model = replace(base.model, layers=(first, replace(rest[0], params=params), *rest[1:]))
    groups = flat_groups(replace(base, model=model))
    assert groups["embed.pos"][0].layout.shards == frozen and not groups["embed.pos"][0].trained
    assert groups["blocks.0"][0].layout.shards == trained


def test_same_sizes_share_the_work() -> None:
    assert flat_groups(make(dp=3, zero=1)) is flat_groups(make(dp=3, zero=2))
    assert flat_groups(make(dp=3, zero=1)) is not flat_groups(make(dp=2, zero=1))
