"""One process a rank: mpi4py moves bytes between the tensors' own memory.

    per group, three duplicated MPI communicators          why
    first     first rounds, in the order of the starts     MPI matches collectives of one communicator by their order
    second    second rounds, in the order of the starts    they interleave with first rounds differently on each rank
    messages  send and recv                                stays outside both queues

Nothing here blocks inside MPI: rounds are nonblocking calls that ``Watch.wait`` polls, so that a rank that waits also
hears who has left.

Call ``startup.start_mpi`` before importing this file: mpi4py initialises MPI when it is first imported.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.errors import DivergedError
from shardlab.comm.mpi_messages import MpiRequest, Receipt, Roll, nbytes, vector, whole
from shardlab.comm.operation import Operation, Request
from shardlab.comm.verdict import Key, Need

if TYPE_CHECKING:
    from shardlab.comm.mpi_world import MpiWorld

__all__ = ["MpiCommunicator", "MpiOperation"]


class MpiOperation(Operation):
    """An operation that the world holds on to until it has been waited for, as MPI does to its buffers."""

    comm: "MpiCommunicator"

    @property
    def needs(self) -> list[Need]:
        """What other ranks must have entered for the round under way to end."""
        return self._request.needs if isinstance(self._request, MpiRequest) else []

    def post(self) -> None:
        self.comm.world.unwaited[id(self)] = self
        super().post()

    def wait(self) -> None:
        self.comm.world.unwaited.pop(id(self), None)
        super().wait()

    def done(self) -> bool:
        finished = super().done()
        if finished:
            self.comm.world.unwaited.pop(id(self), None)
        return finished


class MpiCommunicator(BaseCommunicator):
    """A group of at least two processes.

    Args:
        world: of this rank.
        ranks, axes: as in BaseCommunicator.
        serial: how many groups of the same ranks were connected before; the same on all members.
        first, second, messages: MPI communicators over ``ranks``.
    """

    operation_type = MpiOperation

    def __init__(
        self,
        world: "MpiWorld",
        ranks: tuple[int, ...],
        axes: tuple[str, ...],
        serial: int,
        first: MPI.Intracomm,
        second: MPI.Intracomm,
        messages: MPI.Intracomm,
    ) -> None:
        super().__init__(ranks, axes, first.rank, world.recorder, world.progress)
        self.world, self.key = world, ("entered", ranks, "+".join(axes), serial)
        self._first, self._second, self._messages = first, second, messages
        self._message_counts: Counter[Key] = Counter()

    def counts(self) -> Mapping[Key, int]:
        """What this rank has entered on the group, by key."""
        return {self.key: self.entered, **self._message_counts}

    def free(self) -> None:
        """Give the MPI communicators back; every member calls it."""
        for comm in (self._first, self._second, self._messages):
            comm.Free()

    def block_until_finished(self, op: Operation) -> None:
        assert isinstance(op, MpiOperation)
        try:
            self.world.watch.wait(op)
        except DivergedError as error:
            error.add_note(f"in {op}")
            raise

    def _needs(self, indices: Sequence[int] | None = None, strict: bool = True) -> list[Need]:
        assert self.posting is not None
        members = range(self.size) if indices is None else indices
        number = self.posting.number
        return [Need(self.ranks[i], self.key, number, strict) for i in members if i != self.index]

    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> Request:
        outgoing, sizes = vector(leave, self.index)
        incoming, arriving = vector(arrive, self.index)
        request = self._first.Ialltoallv(outgoing, incoming)
        needs = self._needs([i for i, size in enumerate(arriving) if size])
        return MpiRequest(request, [(i, size) for i, size in enumerate(sizes) if size], needs, [*arrive, *leave])

    def _gather(self, parts: list[Tensor], second: bool) -> Request:
        comm = self._second if second else self._first
        message, counts = vector(parts, None)
        request = comm.Iallgatherv(MPI.IN_PLACE, message)
        posted = [(i, counts[self.index]) for i in range(self.size) if i != self.index]
        return MpiRequest(request, posted, self._needs([i for i, count in enumerate(counts) if count]), parts)

    def _broadcast(self, x: Tensor, src_index: int) -> Request:
        request = self._first.Ibcast(whole(x), src_index)
        if self.index == src_index:
            posted, needs = [(i, nbytes(x)) for i in range(self.size) if i != src_index], self._needs(strict=False)
        else:  # by a tree, so that members in between may be needed too
            between = [i for i in range(self.size) if i != src_index]
            posted, needs = [], self._needs([src_index]) + self._needs(between, strict=False)
        return MpiRequest(request, posted, needs, [x])

    def _barrier(self, name: str) -> Request:
        return Roll(self, self._first, name, self._needs())

    def _send(self, x: Tensor, dst_index: int, tag: int) -> Request:
        needs = [self._message(self.index, dst_index, tag, "sent", "received")]
        return MpiRequest(self._messages.Isend(whole(x), dst_index, tag), [(dst_index, nbytes(x))], needs, [x])

    def _recv(self, x: Tensor, src_index: int, tag: int) -> Request:
        needs = [self._message(src_index, self.index, tag, "received", "sent")]
        return Receipt(self._messages.Irecv(whole(x), src_index, tag), [], needs, [x])

    def _message(self, src_index: int, dst_index: int, tag: int, mine: str, theirs: str) -> Need:
        """Count one message on this side; returns the count that the other side must reach."""
        path = (self.ranks[src_index], self.ranks[dst_index], *self.key[2:], tag)
        self._message_counts[mine, *path] += 1
        peer = self.ranks[dst_index if mine == "sent" else src_index]
        return Need(peer, (theirs, *path), self._message_counts[mine, *path])
