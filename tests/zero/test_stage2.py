from shardlab.zero.sharding import Sharding
from tests.zero.watching import BACKWARD, FORWARD, watched


def held(sharding: Sharding) -> tuple[list[tuple[int, int]], list[object], int]:
    """Elements of parameters and gradient sums by group, local gradients, bytes lent by the pool."""
    groups = sharding.trained_groups
    sizes = [(g.layout.numel, 0 if g.acc is None else g.acc.numel()) for g in groups]
    return sizes, [g.sending for g in groups], sharding.pool.lent_bytes


def test_the_wire_is_that_of_stage_1() -> None:
    first, second = watched(1, {"dp": 3}, held), watched(2, {"dp": 3}, held)
    for one, two in zip(first, second, strict=True):
        assert two.backward == one.backward == [("reduce_scatter", name) for name in BACKWARD]
        assert two.step == one.step == [("all_gather", name) for name in FORWARD]
        assert two.payload == one.payload


def test_local_gradients_are_gone_after_backward() -> None:
    for step in watched(2, {"dp": 3}, held):
        sizes, sending, lent = step.seen["backward"]
        assert all(acc * 3 == full for full, acc in sizes)
        assert sending == [None] * 6
        assert lent == 0


def test_at_most_two_units_wait_at_a_time() -> None:
    """One is being sent while the next one fills."""
    peaks = watched(2, {"dp": 2}, lambda s: (s.pool.peak_bytes, [4 * g.layout.numel for g in s.trained_groups]))
    for step in peaks:
        peak, sizes = step.seen["backward"]
        blocks = sizes[2:5]
        assert blocks[0] == blocks[1]
        assert peak <= blocks[0] * 2 + sizes[0] + sizes[1] < sum(sizes)
