"""Verdicts on ranks that wait: pure logic, then a simulation in which notices are late and out of date."""

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.comm.errors import DeadlockError, RankLeftError
from shardlab.comm.watch import Arrival, Key, Need, Notice, Watch, deadlocked, describe, unmatched

DP: Key = ("entered", (0, 1, 2), "dp", 1)


def waits(rank: int, *needs: Need, counts: dict[Key, int] | None = None) -> Notice:
    return Notice(rank, counts or {}, f"something of rank {rank}", needs)


def test_two_ranks_that_need_each_other_are_stuck() -> None:
    notices = {0: waits(0, Need(1, ("a",), 1)), 1: waits(1, Need(0, ("b",), 1))}
    assert set(deadlocked(notices)) == {0, 1}


def test_a_need_that_is_met_is_no_deadlock() -> None:
    notices = {0: waits(0, Need(1, ("a",), 1)), 1: waits(1, Need(0, ("b",), 1), counts={("a",): 1})}
    assert deadlocked(notices) == {}


def test_a_rank_that_has_not_posted_may_be_slow() -> None:
    assert deadlocked({0: waits(0, Need(1, ("a",), 1), Need(2, ("a",), 1))}) == {}


def test_a_cycle_is_stuck_while_another_rank_runs() -> None:
    notices = {0: waits(0, Need(1, ("a",), 1)), 1: waits(1, Need(0, ("b",), 1))}
    notices[3] = waits(3, Need(0, ("c",), 1))
    assert set(deadlocked(notices)) == {0, 1, 3}, "rank 3 waits for the stuck, rank 2 runs"


def test_whoever_waits_for_a_leaver_is_stuck() -> None:
    left = Notice(1, {("a",): 4})
    assert set(deadlocked({0: waits(0, Need(1, ("a",), 5)), 1: left})) == {0}
    assert deadlocked({0: waits(0, Need(1, ("a",), 4)), 1: left}) == {}


def test_needs_that_may_go_unmet_prove_nothing() -> None:
    notices = {0: waits(0, Need(1, ("a",), 1, strict=False)), 1: waits(1, Need(0, ("b",), 1))}
    assert deadlocked(notices) == {}


def test_unmatched_names_both_sides() -> None:
    path = (0, 2, "dp", 1, 7)
    notices = {0: Notice(0, {DP: 3, ("sent", *path): 2}), 1: Notice(1, {DP: 3}), 2: Notice(2, {DP: 2})}
    lines = unmatched(notices)
    assert "rank 0 sent 2 messages from rank 0 to rank 2 with tag 7 on group dp" in lines[1]
    assert "rank 2 received 0 messages" in lines[1]
    assert "rank 1 entered 3 collectives on group dp of ranks [0, 1, 2], rank 2 entered 2" in lines[2]
    assert len(lines) == 3


def test_equal_counts_are_matched() -> None:
    path = (0, 1, "dp", 1, 0)
    notices = {r: Notice(r, {("entered", (0, 1), "dp", 1): 5, ("connected", (0, 1)): 2}) for r in (0, 1)}
    assert unmatched(notices) == []
    sides = {0: Notice(0, {("sent", *path): 2}), 1: Notice(1, {("received", *path): 2})}
    assert unmatched(sides) == []


def test_describe_speaks_of_ranks_and_groups() -> None:
    assert describe(DP, 4) == "entered 4 collectives on group dp of ranks [0, 1, 2]"
    assert describe(("connected", (0, 1)), 2) == "connected 2 groups of ranks [0, 1]"
    assert describe(("sent", 0, 1, "pp", 1, 9), 3) == "sent 3 messages from rank 0 to rank 1 with tag 9 on group pp"


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


Program = list[list[tuple[int, ...]]]  # per rank, the groups whose collectives it enters one after the other


class Simulation:
    """Ranks that enter collectives; each completes when every member has entered as many. Notices travel late."""

    def __init__(self, program: Program, chance: random.Random) -> None:
        self.program, self.chance, self.size = program, chance, len(program)
        self.entered = [0] * self.size  # operations of the program entered
        self.waiting = [False] * self.size
        self.known: list[dict[int, Notice]] = [{} for _ in program]
        self.posted_for = [-1] * self.size
        self.flying: dict[tuple[int, int], deque[Notice]] = defaultdict(deque)

    def counts(self, rank: int) -> dict[Key, int]:
        done = self.program[rank][: self.entered[rank]]
        return {("entered", group): done.count(group) for group in set(done)}

    def needs(self, rank: int) -> list[Need]:
        group = self.program[rank][self.entered[rank] - 1]
        number = self.counts(rank)["entered", group]
        return [Need(peer, ("entered", group), number) for peer in group if peer != rank]

    def met(self, rank: int) -> bool:
        return all(self.counts(need.rank).get(need.key, 0) >= need.least for need in self.needs(rank))

    def ended(self, rank: int) -> bool:
        return not self.waiting[rank] and self.entered[rank] == len(self.program[rank])

    def advance(self, rank: int) -> bool:
        """One step of the program of a rank; False if it cannot move."""
        if self.waiting[rank]:
            self.waiting[rank] = not self.met(rank)
            return not self.waiting[rank]
        if self.ended(rank):
            return False
        self.entered[rank] += 1
        self.waiting[rank] = True
        return True

    def post(self, rank: int) -> None:
        if self.ended(rank):
            notice = Notice(rank, self.counts(rank))
        elif self.waiting[rank]:
            notice = Notice(rank, self.counts(rank), f"wait {self.entered[rank]}", tuple(self.needs(rank)))
            self.posted_for[rank] = self.entered[rank]
        else:
            return
        self.known[rank][rank] = notice
        for other in range(self.size):
            self.flying[rank, other].append(notice)

    def deliver(self, sender: int, receiver: int) -> None:
        if self.flying[sender, receiver]:
            self.known[receiver][sender] = self.flying[sender, receiver].popleft()

    def flagged(self, rank: int) -> bool:
        """What Watch would raise at this moment."""
        if not self.waiting[rank] or self.posted_for[rank] != self.entered[rank]:
            return False
        return rank in deadlocked(self.known[rank])

    def finish(self) -> None:
        while sum(self.advance(rank) for rank in range(self.size)):
            pass


@st.composite
def programs(draw: st.DrawFn) -> Program:
    size = draw(st.integers(2, 4))
    groups = draw(st.lists(st.sets(st.integers(0, size - 1), min_size=2), min_size=1, max_size=3))
    order = draw(st.lists(st.sampled_from(groups), max_size=8))
    program: Program = [[tuple(sorted(g)) for g in order if rank in g] for rank in range(size)]
    for rank in draw(st.lists(st.integers(0, size - 1), max_size=2)):  # spoil some: swapped, or ended early
        if len(program[rank]) > 1:
            at = draw(st.integers(0, len(program[rank]) - 2))
            program[rank][at], program[rank][at + 1] = program[rank][at + 1], program[rank][at]
            if draw(st.booleans()):
                del program[rank][at:]
    return program


@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_no_rank_that_can_go_on_is_ever_called_stuck_and_every_deadlock_is_found(program: Program, seed: int) -> None:
    chance = random.Random(seed)
    outcome = Simulation(program, chance)
    outcome.finish()  # where each rank ends does not depend on who runs first
    run = Simulation(program, chance)
    for _ in range(60):
        rank, other = chance.randrange(run.size), chance.randrange(run.size)
        step = chance.random()
        if step < 0.5:
            run.advance(rank)
        elif step < 0.7:
            run.post(rank)
        else:
            run.deliver(rank, other)
        for each in range(run.size):
            if run.flagged(each):
                assert outcome.waiting[each] and run.entered[each] == outcome.entered[each], "it could have gone on"
    run.finish()
    for rank in range(run.size):
        run.post(rank)
    for sender in range(run.size):
        for receiver in range(run.size):
            while run.flying[sender, receiver]:
                run.deliver(sender, receiver)
    for rank in range(run.size):
        assert run.flagged(rank) == outcome.waiting[rank]
