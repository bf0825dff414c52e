"""Meeting points alone: who has to be there before bytes move."""

from dataclasses import dataclass

import pytest
import torch

from shardlab.comm.callsite import Site
from shardlab.comm.errors import DivergedError
from shardlab.comm.rendezvous import Arrival, LockstepRequest, MeetingPoint, move


@dataclass
class Call:
    """What a message says of a call."""

    kind: str
    detail: str

    @property
    def site(self) -> Site:
        return Site("prog.py", 1)

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})"


def arrival(index: int, kind: str = "all_gather", detail: str = "4", **blocks: list[torch.Tensor]) -> Arrival:
    return Arrival(index, 10 + index, Call(kind, detail), LockstepRequest([]), **blocks)  # type: ignore[arg-type]


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def point(woken: list[int]) -> MeetingPoint:
    return MeetingPoint("group dp", (10, 11, 12), woken.append)


def test_the_last_member_moves_the_bytes_and_wakes_all(point: MeetingPoint, woken: list[int]) -> None:
    delivered: list[list[int]] = []
    members = [arrival(i) for i in range(3)]
    for a in (members[2], members[0]):
        point.join("first", 1, a, lambda m: delivered.append(sorted(m)))
    assert not delivered and not woken and not any(a.request.test() for a in members)
    point.join("first", 1, members[1], lambda m: delivered.append(sorted(m)))
    assert delivered == [[0, 1, 2]] and sorted(woken) == [10, 11, 12] and all(a.request.test() for a in members)


def test_rounds_are_apart_by_channel_and_number(point: MeetingPoint) -> None:
    met: list[str] = []
    for channel, number in (("first", 1), ("second", 1), ("first", 2)):
        for i in range(2):
            point.join(channel, number, arrival(i), lambda m: met.append("too early"))
    assert not met
    point.join("second", 1, arrival(2), lambda m: met.append("second"))
    assert met == ["second"]


@pytest.mark.parametrize(("kind", "detail"), [("all_reduce", "4"), ("all_gather", "5")])
def test_different_calls_move_nothing_and_fail_on_all(point: MeetingPoint, kind: str, detail: str) -> None:
    members = [arrival(0), arrival(1, kind, detail), arrival(2)]
    for a in members:
        point.join("first", 1, a, lambda m: pytest.fail("bytes moved"))
    for a in members:
        with pytest.raises(DivergedError, match=rf"rank 11: {kind} \({detail}\) at prog.py:1"):
            a.request.test()


def test_disagreements_are_known_before_all_are_there(point: MeetingPoint) -> None:
    point.join("first", 1, arrival(0), lambda m: None)
    assert point.disagreements() == {}
    point.join("first", 1, arrival(2, "barrier"), lambda m: None)
    found = point.disagreements()
    assert set(found) == {10, 12} and "not there yet: ranks [11]" in str(found[10])


def test_messages_pair_in_order_per_key(point: MeetingPoint, woken: list[int]) -> None:
    sends = [arrival(0, "send", leave=[torch.tensor([float(i)])]) for i in range(2)]
    recvs = [arrival(1, "recv", arrive=[torch.zeros(1)]) for _ in range(2)]
    point.post_message((0, 1, 0), sends[0])
    point.post_message((0, 1, 7), recvs[1])  # another tag
    point.post_message((1, 0, 0), arrival(0, "recv", arrive=[torch.zeros(1)]))  # the other way
    point.post_message((0, 1, 0), sends[1])
    assert not woken
    point.post_message((0, 1, 0), recvs[0])
    assert recvs[0].arrive[0].item() == 0 and sends[0].request.test() and not sends[1].request.test()
    assert sorted(woken) == [10, 11]


def test_blocks_of_another_size_than_their_place_are_refused() -> None:
    point = MeetingPoint("group dp", (10, 11), lambda rank: None)
    members = [
        arrival(i, leave=[torch.zeros(2), torch.zeros(2)], arrive=[torch.zeros(2 + i), torch.zeros(2)])
        for i in range(2)
    ]
    for a in members:
        point.join("first", 1, a, lambda m: pytest.fail("bytes moved"))
    with pytest.raises(DivergedError, match="rank 10 sends 2 elements to rank 11, which expects 3"):
        members[0].request.test()


def test_move_copies_all_pairs_and_skips_empty_ones() -> None:
    to = [torch.zeros(2), torch.zeros(0), torch.zeros(3, dtype=torch.int8)]
    move(zip(to, [torch.ones(2), torch.ones(0), torch.full((3,), 7, dtype=torch.int8)], strict=True))
    assert [x.tolist() for x in to] == [[1, 1], [], [7, 7, 7]]
    move([])
