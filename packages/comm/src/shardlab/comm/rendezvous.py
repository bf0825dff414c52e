"""Where the ranks of a lockstep group meet: the bytes of a round move when its last member arrives.

A collective's round is keyed by (channel, number): every member numbers its collectives alike, so the n-th call of one
rank meets the n-th of the others, whatever they are; if they are not the same call, all members raise DivergedError.
Messages are keyed by (sender, receiver, tag), first in, first out.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardlab.comm.errors import DivergedError

if TYPE_CHECKING:
    from shardlab.comm.lockstep import LockstepOperation

__all__ = ["Arrival", "LockstepRequest", "Meeting", "MeetingPoint", "move"]

Wake = Callable[[int], None]  # by global rank


@dataclass
class LockstepRequest:
    """A round that this rank has joined."""

    posted: list[tuple[int, int]]
    ended: bool = False
    error: str | None = None

    def test(self) -> bool:
        """True once all members have met; raises what they disagree on."""
        if self.error is not None:
            raise DivergedError(self.error)
        return self.ended


@dataclass
class Arrival:
    """One rank at a meeting.

    Attributes:
        index: in the group.
        rank: global.
        op: the call; its kind and detail must agree over the group.
        arrive, leave: by index of the other side; which of them is used depends on the round.
    """

    index: int
    rank: int
    op: "LockstepOperation"
    request: LockstepRequest
    arrive: list[Tensor] = field(default_factory=list)
    leave: list[Tensor] = field(default_factory=list)

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.op} at {self.op.site}"


@dataclass
class Meeting:
    """A round of a collective that not all members have joined yet."""

    arrivals: dict[int, Arrival] = field(default_factory=dict)

    def disagree(self) -> bool:
        """True if the members have not all made the same call."""
        return len({(a.op.kind, a.op.detail) for a in self.arrivals.values()}) > 1


def move(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each (to, from), in one go."""
    filled = [(to, source) for to, source in pairs if to.numel()]
    if filled:
        with torch.no_grad():
            torch._foreach_copy_([to for to, _ in filled], [source for _, source in filled])


class MeetingPoint:
    """What all members of one group share.

    Args:
        name: of the group, for messages.
        ranks: global ranks of the members.
        wake: tells the scheduler that a round of a rank has ended.
    """

    def __init__(self, name: str, ranks: tuple[int, ...], wake: Wake) -> None:
        self.name, self.ranks, self._wake = name, ranks, wake
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._sends: dict[tuple[int, int, int], deque[Arrival]] = {}
        self._recvs: dict[tuple[int, int, int], deque[Arrival]] = {}

    def join(self, channel: str, number: int, arrival: Arrival, deliver: Callable[[dict[int, Arrival]], None]) -> None:
        """Join a round; the last member moves the bytes with ``deliver`` and ends it for all."""
        meeting = self._meetings.setdefault((channel, number), Meeting())
        meeting.arrivals[arrival.index] = arrival
        if len(meeting.arrivals) < len(self.ranks):
            return
        del self._meetings[channel, number]
        error = self._diverged(meeting) if meeting.disagree() else _unequal(meeting)
        if error is None:
            deliver(meeting.arrivals)
        self._end(meeting.arrivals.values(), error)

    def post_message(self, key: tuple[int, int, int], arrival: Arrival) -> None:
        """Post one side of a message; key is (sender, receiver, tag), and the second side to come moves the bytes."""
        mine, others = (self._sends, self._recvs) if arrival.leave else (self._recvs, self._sends)
        queue = others.get(key)
        if not queue:
            mine.setdefault(key, deque()).append(arrival)
            return
        other = queue.popleft()
        error = None
        if arrival.op.detail != other.op.detail:
            error = f"a message does not fit its receiver: {arrival}; {other}. Both need the same numel and dtype"
        else:
            sender, receiver = (arrival, other) if arrival.leave else (other, arrival)
            move([(receiver.arrive[0], sender.leave[0])])
        self._end((arrival, other), error)

    def disagreements(self) -> dict[int, Exception]:
        """An error per waiting member of each round whose members made different calls; for when nobody can go on."""
        found: dict[int, Exception] = {}
        for meeting in self._meetings.values():
            if meeting.disagree():
                text = self._diverged(meeting)
                found |= {a.rank: DivergedError(text) for a in meeting.arrivals.values()}
        return found

    def _diverged(self, meeting: Meeting) -> str:
        came = "; ".join(str(meeting.arrivals[i]) for i in sorted(meeting.arrivals))
        absent = [rank for i, rank in enumerate(self.ranks) if i not in meeting.arrivals]
        others = f"; not there yet: ranks {absent}" if absent else ""
        return f"ranks of {self.name} made different calls: {came}{others}. All must make the same calls in one order"

    def _end(self, arrivals: Iterable[Arrival], error: str | None) -> None:
        for arrival in arrivals:
            arrival.request.ended, arrival.request.error = error is None, error
            self._wake(arrival.rank)


def _unequal(meeting: Meeting) -> str | None:
    """What is wrong if a block that leaves has another size than its place at the receiver (all_to_all with splits)."""
    for a in meeting.arrivals.values():
        for b in meeting.arrivals.values():
            if a is b or not a.leave or not b.arrive:
                continue
            sent, expected = a.leave[b.index].numel(), b.arrive[a.index].numel()
            if sent != expected:
                return f"rank {a.rank} sends {sent} elements to rank {b.rank}, which expects {expected}: {a}; {b}"
    return None
