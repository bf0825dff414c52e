"""Verdicts on ranks that wait: by example, then in a simulation whose notices are late and out of date."""

import random
from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.comm.verdict import Key, Need, Notice, deadlocked, describe, unmatched

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
