"""Ranks inside one process: communicators that meet in memory.

Bytes move when the last member of a round arrives. Between start_ and wait the buffers of a call are watched (see
``inflight``); a blocking call works on the caller's memory at once, since its rank cannot touch it meanwhile.
"""

import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.callsite import Site, call_site
from shardlab.comm.errors import CommError
from shardlab.comm.inflight import lend_in_flight
from shardlab.comm.mesh import Mesh
from shardlab.comm.operation import Loan, Operation, Progress, Rounds
from shardlab.comm.record import Recorder
from shardlab.comm.rendezvous import Arrival, LockstepRequest, MeetingPoint, move
from shardlab.comm.scheduler import Scheduler
from shardlab.plan.mesh import MeshShape

__all__ = ["LockstepCommunicator", "LockstepOperation", "LockstepWorld", "MeetingPoints", "current_world"]


class MeetingPoints:
    """The groups of a lockstep world, shared by its ranks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._points: dict[tuple[tuple[int, ...], tuple[str, ...], int], MeetingPoint] = {}
        scheduler.diagnose = self._diagnose

    def point(self, ranks: tuple[int, ...], axes: tuple[str, ...], occurrence: int, name: str) -> MeetingPoint:
        """The point that members meet at who connect the same group for the same time."""
        key = (ranks, axes, occurrence)
        if key not in self._points:
            self._points[key] = MeetingPoint(name, ranks, self.scheduler.wake)
        return self._points[key]

    def _diagnose(self, _: str) -> dict[int, Exception]:
        found: dict[int, Exception] = {}
        for point in self._points.values():
            found |= point.disagreements()
        return found


class LockstepWorld:
    """All lockstep ranks, seen from one of them.

    Args:
        rank: global rank.
        size: number of ranks.
        points: shared by all ranks.
        seed: of the moments at which asynchronous calls move their bytes.
    """

    def __init__(self, rank: int, size: int, points: MeetingPoints, seed: int) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self.recorder, self.progress = Recorder(rank), Progress()
        self.meshes: dict[MeshShape, Mesh] = {}  # one per shape that the rank asked for
        self.chance = random.Random(f"{seed} {rank}")
        self.unwaited: dict[int, weakref.ref[LockstepOperation]] = {}
        self.dropped: list[str] = []
        self._points, self._scheduler = points, points.scheduler
        self._connected: Counter[tuple[tuple[int, ...], tuple[str, ...]]] = Counter()

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> "LockstepCommunicator":
        """Connect this rank to a group it belongs to."""
        self._connected[ranks, axes] += 1
        return LockstepCommunicator(self, ranks, axes, self._points, self._connected[ranks, axes])

    def mesh(self, shape: MeshShape) -> Mesh:
        """The mesh of a shape: the same one each time."""
        if shape not in self.meshes:
            self.meshes[shape] = Mesh(shape, self)
        return self.meshes[shape]

    def check(self) -> None:
        """Raise if the run has failed elsewhere or an operation of this rank was dropped."""
        self._scheduler.check(self.rank)
        self._scheduler.moved()
        if self.dropped:
            text, self.dropped = "; ".join(self.dropped), []
            raise CommError(f"rank {self.rank} dropped a Pending without wait(): {text}")

    def close(self) -> None:
        """Raise if an operation of this rank was started and never waited for."""
        self.check()
        left = [op for op in (ref() for ref in self.unwaited.values()) if op is not None]
        if left:
            text = "; ".join(f"{op} started at {op.site}" for op in left)
            raise CommError(f"rank {self.rank} ended without wait() on: {text}")

    def wait(self, what: object) -> None:
        """Let other ranks run until something of this one has ended."""
        self._scheduler.wait(self.rank, what)

    def offer(self) -> None:
        """Let other ranks that can run do so."""
        self._scheduler.offer(self.rank)


_here = threading.local()  # the lockstep rank of each thread


def current_world() -> LockstepWorld | None:
    """The world of the lockstep rank that calls, or None outside ``run_ranks``."""
    return getattr(_here, "world", None)


def enter_world(world: LockstepWorld) -> None:
    """Make the calling thread that of a lockstep rank."""
    _here.world = world


class LockstepOperation(Operation):
    """An operation that knows where it was started and whether somebody waited for it."""

    comm: "LockstepCommunicator"

    def __init__(
        self, comm: BaseCommunicator, kind: str, rounds: Rounds, loan: Loan, detail: str, peer: int | None
    ) -> None:
        super().__init__(comm, kind, rounds, loan, detail, peer)
        self.site: Site = call_site()
        self._late_polls = 0
        if not self.comm.blocking:
            self.comm.world.unwaited[id(self)] = weakref.ref(self)
            self._late_polls = self.comm.world.chance.randrange(3)

    def wait(self) -> None:
        """Block until finished; raises what went wrong."""
        self.comm.world.unwaited.pop(id(self), None)
        super().wait()

    def done(self) -> bool:
        """Let other ranks run, then say whether ``wait`` would not block."""
        self.comm.world.offer()
        if self._late_polls and not self.finished:  # a real network is not always ready at the first look
            self._late_polls -= 1
            self.comm.progress.run()
            return False
        finished = super().done()
        if finished:
            self.comm.world.unwaited.pop(id(self), None)
        return finished

    def __del__(self) -> None:
        # Only notes it: an error raised here would be printed and lost, and a collective here would never be met.
        world = self.comm.world
        if world.unwaited.pop(id(self), None) is not None:
            world.dropped.append(f"{self} started at {self.site}")


class LockstepCommunicator(BaseCommunicator):
    """One group of lockstep ranks."""

    operation_type = LockstepOperation

    def __init__(
        self,
        world: LockstepWorld,
        ranks: tuple[int, ...],
        axes: tuple[str, ...],
        points: MeetingPoints,
        occurrence: int,
    ) -> None:
        super().__init__(ranks, axes, ranks.index(world.rank), world.recorder, world.progress)
        self.world, self.blocking = world, False
        self._point = points.point(ranks, axes, occurrence, str(self))

    def block_until_finished(self, op: Operation) -> None:
        """Let others run until ``op`` is finished."""
        while not op.test():
            self.world.wait(op)

    def _call(self, start: Callable[..., Operation], *args: Any) -> None:
        self.blocking = True
        try:
            op = start(*args)
        finally:
            self.blocking = False
        op.wait()

    def _lend(self, out: Tensor | None, inp: Tensor | None, reads_out: bool) -> Loan:
        self.world.check()
        if self.blocking:
            return Loan.of(out, inp)
        return lend_in_flight(out, inp, reads_out, late=self.world.chance.random() < 0.5)

    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> LockstepRequest:
        posted = [(i, x.nbytes) for i, x in enumerate(leave) if i != self.index]
        return self._join("first", self._arrival(posted, arrive, leave), _deliver_exchange)

    def _gather(self, parts: list[Tensor], second: bool) -> LockstepRequest:
        own = parts[self.index].nbytes
        posted = [(i, own) for i in range(self.size) if i != self.index]
        return self._join("second" if second else "first", self._arrival(posted, arrive=parts), _deliver_gather)

    def _broadcast(self, x: Tensor, src_index: int) -> LockstepRequest:
        posted = [(i, x.nbytes) for i in range(self.size) if i != self.index] if self.index == src_index else []

        def deliver(arrivals: dict[int, Arrival]) -> None:
            source = arrivals[src_index].arrive[0]
            move((a.arrive[0], source) for i, a in arrivals.items() if i != src_index)

        return self._join("first", self._arrival(posted, arrive=[x]), deliver)

    def _barrier(self, name: str) -> LockstepRequest:
        return self._join("first", self._arrival([]), lambda _: None)

    def _send(self, x: Tensor, dst_index: int, tag: int) -> LockstepRequest:
        arrival = self._arrival([(dst_index, x.nbytes)], leave=[x])
        self._point.post_message((self.index, dst_index, tag), arrival)
        return arrival.request

    def _recv(self, x: Tensor, src_index: int, tag: int) -> LockstepRequest:
        arrival = self._arrival([], arrive=[x])
        self._point.post_message((src_index, self.index, tag), arrival)
        return arrival.request

    def _arrival(
        self, posted: list[tuple[int, int]], arrive: list[Tensor] | None = None, leave: list[Tensor] | None = None
    ) -> Arrival:
        op = self.posting
        assert isinstance(op, LockstepOperation)
        request = LockstepRequest(posted)
        return Arrival(self.index, self.world.rank, op, request, arrive or [], leave or [])

    def _join(self, channel: str, arrival: Arrival, deliver: Callable[[dict[int, Arrival]], None]) -> LockstepRequest:
        self._point.join(channel, arrival.op.number, arrival, deliver)
        return arrival.request


def _deliver_exchange(arrivals: dict[int, Arrival]) -> None:
    for i, receiver in arrivals.items():
        move((receiver.arrive[j], sender.leave[i]) for j, sender in arrivals.items() if j != i)


def _deliver_gather(arrivals: dict[int, Arrival]) -> None:
    for i, receiver in arrivals.items():
        move((receiver.arrive[j], sender.arrive[j]) for j, sender in arrivals.items() if j != i)
