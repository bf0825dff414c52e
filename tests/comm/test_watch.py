"""Waiting, against a channel in memory."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from shardlab.comm.errors import DeadlockError, RankLeftError
from shardlab.comm.verdict import Key, Need, Notice
from shardlab.comm.watch import Arrival, Watch

DP: Key = ("entered", (0, 1, 2), "dp", 1)


@dataclass
class Wire:
    """A Post in memory, delivering at once."""

    rank: int
    boxes: dict[int, deque[object]] = field(default_factory=lambda: defaultdict(deque))

    def send(self, rank: int, item: object) -> None:
        self.boxes[rank].append(item)

    def collect(self) -> Iterator[object]:
        while self.boxes[self.rank]:
            yield self.boxes[self.rank].popleft()


@dataclass
class Thing:
    """A wait that ends when something has happened, or never."""

    needs: list[Need]
    over: Callable[[], bool] = lambda: False

    def test(self) -> bool:
        return self.over()

    def __str__(self) -> str:
        return "all_reduce #5"


def pair(report_s: float) -> tuple[Watch, Wire]:
    wire = Wire(0)
    return Watch(0, 2, wire, dict, report_s), wire


def test_wait_returns_when_the_thing_is_over() -> None:
    watch, _ = pair(10)
    polls = iter([False, False, True])
    watch.wait(Thing([], lambda: next(polls)))
    assert list(polls) == []
    assert watch.waiting is None


def test_wait_fails_if_a_leaver_entered_too_few() -> None:
    watch, wire = pair(10)
    wire.boxes[0].append(Notice(1, {DP: 4}))
    with pytest.raises(RankLeftError, match=r"for all_reduce #5, but rank 1 has ended: it entered 4 .* 5 are needed"):
        watch.wait(Thing([Need(1, DP, 5)]))


def test_wait_goes_on_if_a_leaver_entered_enough() -> None:
    watch, wire = pair(10)
    wire.boxes[0].append(Notice(1, {DP: 5}))
    wire.boxes[0].append(Notice(1, {DP: 5}))
    polls = iter(range(200))
    watch.wait(Thing([Need(1, DP, 5)], lambda: 1 in watch.notices and next(polls) == 199))
    assert watch.notices[1].left


def test_a_long_wait_is_posted_with_its_counts() -> None:
    watch, wire = pair(0.02)
    watch.wait(Thing([Need(1, DP, 5)], lambda: bool(wire.boxes[1])))
    (notice,) = wire.boxes[1]
    assert notice == Notice(0, {}, "all_reduce #5", (Need(1, DP, 5),))


def test_waits_that_need_each_other_raise_naming_both() -> None:
    watch, wire = pair(0.02)
    wire.boxes[0].append(Notice(1, {}, "recv #1 from rank 0", (Need(0, ("sent",), 1),)))
    with pytest.raises(DeadlockError, match=r"rank 0 waits for all_reduce #5\n  rank 1 waits for recv #1 from rank 0"):
        watch.wait(Thing([Need(1, DP, 5)]))


def test_a_wait_longer_than_six_reports_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    watch, _ = pair(0.02)
    end = time.monotonic() + 0.5
    watch.wait(Thing([Need(1, DP, 5)], lambda: time.monotonic() > end))
    assert capsys.readouterr().err.count("rank 0: has waited") == 1


def test_meet_waits_for_all_members() -> None:
    watch, wire = pair(10)
    wire.boxes[0].append(Arrival(1, ("connected", (0, 1))))
    assert watch.meet((0, 1), "group dp") == 1
    assert list(wire.boxes[1]) == [Arrival(0, ("connected", (0, 1)))]
    wire.boxes[0].append(Notice(1, {("connected", (0, 1)): 1}))
    with pytest.raises(RankLeftError, match="connected 1 groups of ranks"):
        watch.meet((0, 1), "group dp")


def test_leave_returns_when_all_have_left() -> None:
    watch, wire = pair(10)
    wire.boxes[0] += [Notice(1, {}, "something", ()), Notice(1, {})]
    assert watch.leave() == []
    assert [item.left for item in wire.boxes[1] if isinstance(item, Notice)] == [True]
