"""Flat groups of a plan: one layout per unit, in the compute dtype, over the dp ranks."""

from shardlab.plan import flat_groups
from tests.plan.plans import BF16, make


def test_groups() -> None:
    plan = make(dp=3, precision=BF16)
    groups = flat_groups(plan)
    assert list(groups) == [unit.name for unit in plan.model.units]
    (group,) = groups["blocks.0"]
    assert (group.layout.shards, group.layout.dtype, group.layout.align, group.trained) == (3, "bf16", 32, True)
    assert group.whole_bytes("fp32") == 2 * group.layout.nbytes
    assert group.shard_bytes("bf16") * 3 == group.layout.nbytes


def test_same_sizes_share_the_work() -> None:
    assert flat_groups(make(dp=3, zero=1)) is flat_groups(make(dp=3, zero=3))
    assert flat_groups(make(dp=3)) is not flat_groups(make(dp=2))
