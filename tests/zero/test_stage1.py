from shardlab.zero.sharding import Sharding
from tests.zero.watching import BACKWARD, FORWARD, watched


def held(sharding: Sharding) -> list[tuple[int, int, int, int]]:
    """Elements of the parameters, the gradient sum, the local gradient, and the optimizer's pieces, by group."""
    found = []
    for group in sharding.trained_groups:
        assert group.full is not None
        pieces = sum(m.segment.numel() for m in group.members if m.segment is not None)
        acc, sending = (0 if x is None else x.numel() for x in (group.acc, group.sending))
        found.append((group.full.numel(), acc, sending, pieces))
    return found


def test_one_reduce_scatter_a_unit_and_one_gather_after_the_step() -> None:
    for step in watched(1, {"dp": 3}, held):
        assert step.forward == []
        assert step.backward == [("reduce_scatter", name) for name in BACKWARD]
        assert step.step == [("all_gather", name) for name in FORWARD]


def test_only_the_optimizer_is_sharded() -> None:
    steps = watched(1, {"dp": 3}, held)
    for step in steps:
        for full, acc, sending, _ in step.seen["backward"]:
            assert acc * 3 == full == sending
    pieces = [sum(p for *_, p in step.seen["step"]) for step in steps]
    assert sum(pieces) == 33 * 12 + 16 * 12 + 3 * (12 * 36 + 36 + 12 * 12 + 12 + 2 * 12 * 24 + 24 + 12 + 4 * 12) + 24
    assert max(pieces) < 0.4 * sum(pieces)


def test_pieces_of_the_optimizer_lie_in_the_parameters() -> None:
    """No copy: the step writes where forward reads."""

    def inside(sharding: Sharding) -> bool:
        return all(
            member.segment.untyped_storage().data_ptr() == member.param.untyped_storage().data_ptr()
            for group in sharding.trained_groups
            for member in group.members
            if member.segment is not None
        )

    assert all(step.seen["step"] for step in watched(1, {"dp": 2}, inside))
