"""Hybrid sharding: shards inside groups, sums over the groups too. Equal to sums taken group by group."""

import pytest

from shardlab.zero import Precision
from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import Recipe, differing
from tests.zero.training import STAGES, lockstep


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["batchnorm", "gpt"])
def test_two_groups_of_two(model: str, stage: int) -> None:
    recipe = Recipe(model, micro_batches=2, clip=0.3, groups=True, with_state=True)
    expected = rank_ordered(recipe, [(0, 1), (2, 3)])
    ours = lockstep(recipe, {"rep": 2, "dp": 2}, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 4


@pytest.mark.parametrize("stage", STAGES)
def test_two_groups_in_bf16(stage: int) -> None:
    recipe = Recipe("gpt", micro_batches=2, precision=Precision(compute="bf16", reduce="bf16"))
    expected = rank_ordered(recipe, [(0, 1), (2, 3)])
    ours = lockstep(recipe, {"rep": 2, "dp": 2}, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 4


def test_replicas_alone_are_data_parallel() -> None:
    """Shards over one rank, copies over three."""
    recipe = Recipe("gpt", clip=0.3)
    expected = rank_ordered(recipe, 3)
    ours = lockstep(recipe, {"rep": 3, "dp": 1}, 3)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 3
