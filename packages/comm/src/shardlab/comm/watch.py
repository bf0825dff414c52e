"""Waiting for other ranks without hanging: who has left, and whether anybody can still be waited for.

Ranks tell each other, over a channel of their own, how many operations they have entered:

    a rank that ends posts "left" and its counts               a waiter that needs more raises RankLeftError
    a rank that has waited 10 s posts its wait and its counts  waits that need each other raise DeadlockError
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from shardlab.comm.errors import DeadlockError, RankLeftError
from shardlab.comm.verdict import Key, Need, Notice, deadlocked, describe, lacks, unmatched

__all__ = ["Arrival", "Post", "Waiting", "Watch", "pause"]

SPIN_S = 2e-5  # a waiter polls this long without a pause, then sleeps between polls
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 1e-3
LOOK_S = 0.02  # between two looks at the notices of others
REMINDER = 6  # report periods until a long wait is reported on stderr


class Waiting(Protocol):
    """Something a rank waits for; ``str()`` of it goes into messages."""

    @property
    def needs(self) -> list[Need]:
        """What other ranks must have entered."""

    def test(self) -> bool:
        """True when it is over; makes progress, never blocks."""


@dataclass(frozen=True)
class Arrival:
    """A rank is about to connect a group and waits for its other members."""

    rank: int
    key: Key


class Post(Protocol):
    """Carries small objects between the ranks of a world; arrives in order per sender."""

    def send(self, rank: int, item: object) -> None:
        """Hand ``item`` to ``rank`` some time; never blocks."""

    def collect(self) -> Iterator[object]:
        """Items that have arrived."""


def pause(waited_s: float) -> None:
    """Leave the core to others for a moment that grows with the wait.

    Where ranks outnumber cores, spinning starves the very ranks that are waited for. Short sleeps are chosen by
    measurement: sched_yield is faster while ranks have the cores to themselves, but beside other programs each call
    costs a time slice of some milliseconds (see benchmarks/collectives.py).
    """
    if waited_s > SPIN_S:
        time.sleep(min(max(SHORTEST_SLEEP_S, waited_s / 50), LONGEST_SLEEP_S))


class Watch:
    """The waits of one rank, and what it knows of the others.

    Args:
        rank: of this process in the world.
        size: of the world.
        post: the channel.
        counts: gives what this rank has entered so far.
        report_s: seconds of waiting after which a wait is posted.
    """

    def __init__(
        self, rank: int, size: int, post: Post, counts: Callable[[], Mapping[Key, int]], report_s: float
    ) -> None:
        self.rank, self.post, self.report_s = rank, post, report_s
        self.others = [other for other in range(size) if other != rank]
        self.notices: dict[int, Notice] = {}  # the latest of each rank
        self.waiting: Waiting | None = None  # what this rank waits for now
        self._announced = False  # that wait, to the others
        self._judged = True  # the notices as they are now
        self._counts = counts
        self._connected: Counter[Key] = Counter()
        self._arrived: Counter[tuple[int, Key]] = Counter()

    def wait(self, waiting: Waiting) -> None:
        """Return once ``waiting.test()`` is true.

        Raises:
            RankLeftError: a rank that is needed has ended.
            DeadlockError: the ranks that are needed wait for this one.
        """
        if waiting.test():
            return
        self.waiting, begin = waiting, time.perf_counter()
        waited, look_at, report_at, remind_at = 0.0, LOOK_S, self.report_s, self.report_s * REMINDER
        try:
            while not waiting.test():
                pause(waited)
                waited = time.perf_counter() - begin
                if waited < look_at:
                    continue
                look_at = waited + LOOK_S
                self._look(waiting)
                if waited >= report_at:
                    report_at, self._announced = float("inf"), True
                    self._announce(Notice(self.rank, self.counts(), str(waiting), tuple(waiting.needs)))
                if waited >= remind_at:
                    remind_at = float("inf")
                    print(f"rank {self.rank}: has waited {waited:.0f} s for {waiting}", file=sys.stderr, flush=True)
        finally:
            self.waiting, self._announced = None, False

    def meet(self, ranks: tuple[int, ...], what: str) -> int:
        """Wait until all of ``ranks`` are about to connect the same group; returns how many times these have met."""
        key: Key = ("connected", ranks)
        self._connected[key] += 1
        for other in ranks:
            if other != self.rank:
                self.post.send(other, Arrival(self.rank, key))
        self.wait(Meeting(self, key, [r for r in ranks if r != self.rank], what))
        return self._connected[key]

    def arrived(self, rank: int, key: Key) -> int:
        """How many times ``rank`` has come to meet for ``key``."""
        return self._arrived[rank, key]

    def times(self, key: Key) -> int:
        """How many times this rank has."""
        return self._connected[key]

    def leave(self) -> list[str]:
        """Tell the others that this rank ends, and stay until all of them do.

        Returns:
            Lines on operations that not all ranks took part in.
        """
        self._announce(Notice(self.rank, self.counts()))
        begin = time.perf_counter()
        while not all(other in self.notices and self.notices[other].left for other in self.others):
            self.collect()
            pause(time.perf_counter() - begin)
        return unmatched(self.notices)

    def counts(self) -> dict[Key, int]:
        """What this rank has entered so far."""
        return {**self._counts(), **self._connected}

    def collect(self) -> None:
        """Take in what others have posted."""
        for item in self.post.collect():
            if isinstance(item, Arrival):
                self._arrived[item.rank, item.key] += 1
            elif isinstance(item, Notice):
                self._take(item)

    def _take(self, notice: Notice) -> None:
        self.notices[notice.rank] = notice
        self._judged = False

    def _announce(self, notice: Notice) -> None:
        self._take(notice)
        for other in self.others:
            self.post.send(other, notice)

    def _look(self, waiting: Waiting) -> None:
        """Raise if ``waiting`` cannot end any more."""
        self.collect()
        for need in waiting.needs:
            notice = self.notices.get(need.rank)
            if notice is not None and notice.left and lacks(notice, need):
                raise RankLeftError(
                    f"rank {self.rank} waits for {waiting}, but rank {need.rank} has ended: it "
                    f"{describe(need.key, notice.counts.get(need.key, 0))}, {need.least} are needed. "
                    "Every rank must run the same collectives; see why that rank ended early"
                )
        if self._judged or not self._announced:
            return
        self._judged = True
        stuck = deadlocked(self.notices)
        if self.rank in stuck:
            waits = "\n".join(f"  rank {rank} waits for {stuck[rank].waits_for}" for rank in sorted(stuck))
            raise DeadlockError(f"no rank can go on:\n{waits}")


class Meeting:
    """The wait for the members of a group that is being connected."""

    def __init__(self, watch: Watch, key: Key, others: list[int], what: str) -> None:
        self.watch, self.key, self.others, self.what = watch, key, others, what
        self.count = watch.times(key)

    @property
    def needs(self) -> list[Need]:
        return [Need(rank, self.key, self.count) for rank in self.others]

    def test(self) -> bool:
        self.watch.collect()
        return all(self.watch.arrived(rank, self.key) >= self.count for rank in self.others)

    def __str__(self) -> str:
        return self.what
