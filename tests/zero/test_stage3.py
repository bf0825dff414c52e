from shardlab.zero.sharding import Sharding
from tests.oracle.recipe import Recipe
from tests.zero.watching import BACKWARD, FORWARD, watched


def held(sharding: Sharding) -> tuple[list[str], int, list[tuple[int, int]]]:
    """States of the units, bytes lent, and by group the elements and the bytes behind the shard."""
    groups = sharding.trained_groups
    sizes = [(g.layout.numel, g.shard.untyped_storage().nbytes()) for g in groups]
    return [unit.state.value for unit in sharding.units], sharding.pool.lent_bytes, sizes


def test_one_gather_forward_one_backward_and_nothing_after_the_step() -> None:
    for step in watched(3, {"dp": 3}, held):
        assert {op for op, _ in step.forward} == {"all_gather"}
        gathered = [name for op, name in step.backward if op == "all_gather"]
        assert [name for op, name in step.backward if op == "reduce_scatter"] == BACKWARD
        assert step.step == []
        # forward uses the token embedding at both ends; backward keeps it from its first use to its last
        assert [name for _, name in step.forward] == [*FORWARD, "tok.weight"]
        assert gathered[0] == "tok.weight"
        assert sorted(gathered) == sorted(FORWARD)


def test_a_rank_keeps_its_part_and_no_more() -> None:
    for step in watched(3, {"dp": 3}, held):
        for when in ("forward", "backward", "step"):
            states, lent, sizes = step.seen[when]
            assert states == ["sharded"] * 6
            assert lent == 0
            assert all(behind * 3 == numel * 4 for numel, behind in sizes)


def test_what_is_whole_at_a_time_does_not_grow_with_the_depth() -> None:
    """The unit in use, the one that is fetched ahead, two that hold gradients on their way, and the tied embedding."""

    def look(sharding: Sharding) -> tuple[int, list[int]]:
        return sharding.pool.peak_bytes, [4 * group.layout.numel for group in sharding.trained_groups]

    (peak, sizes), (deep_peak, deep_sizes) = (
        watched(3, {"dp": 2}, look, Recipe(model, steps=1))[0].seen["backward"] for model in ("gpt", "gpt_deep")
    )
    assert sum(deep_sizes) > 2 * sum(sizes)
    assert deep_peak == peak <= 4 * max(sizes) + sizes[0]
