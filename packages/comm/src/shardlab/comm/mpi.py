"""One process a rank: mpi4py moves bytes between the tensors' own memory.

    per group, three duplicated MPI communicators          why
    first     first rounds, in the order of the starts     MPI matches collectives of one communicator by their order
    second    second rounds, in the order of the starts    they interleave with first rounds differently on each rank
    messages  send and recv                                stays outside both queues

Nothing here blocks inside MPI: rounds are nonblocking calls that ``Watch.wait`` polls, so that a rank that waits also
hears who has left. Tensors are handed over as addresses and 64-bit byte counts: more than 2^31 bytes pass, and so does
every dtype.

Call ``startup.start_mpi`` before importing this file: mpi4py initialises MPI when it is first imported.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import torch
from mpi4py import MPI
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.communicator import Communicator
from shardlab.comm.errors import CommError, DivergedError
from shardlab.comm.mesh import Mesh
from shardlab.comm.operation import Operation, Progress, Request
from shardlab.comm.record import Recorder
from shardlab.comm.solo import SoloCommunicator
from shardlab.comm.watch import Key, Need, Watch
from shardlab.plan.mesh import MeshShape

__all__ = ["MpiCommunicator", "MpiWorld", "REPORT_S"]

REPORT_S = 10.0
"""Seconds of waiting after which a rank tells the others what it waits for; SHARDLAB_WAIT_REPORT_S overrides."""

_NAME_BYTES = 128  # of a barrier: 16 of digest, the rest the beginning of its name

Message = list[object]  # what mpi4py takes: memory, counts, displacements, datatype


def _nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _whole(x: Tensor) -> Message:
    return [MPI.buffer.fromaddress(x.data_ptr(), _nbytes(x)), _nbytes(x), MPI.BYTE]


def _vector(parts: Sequence[Tensor], skip: int | None) -> tuple[Message, list[int]]:
    """Blocks of one allocation as a message of byte counts and displacements, and these counts."""
    counts = [0 if i == skip else _nbytes(part) for i, part in enumerate(parts)]
    starts = [part.data_ptr() if count else 0 for part, count in zip(parts, counts, strict=True)]
    base = min((start for start in starts if start), default=0)
    end = max(start + count for start, count in zip(starts, counts, strict=True))
    memory = MPI.buffer.fromaddress(base, end - base)
    return [memory, counts, [start - base if start else 0 for start in starts], MPI.BYTE], counts


class MpiRequest:
    """A nonblocking MPI call.

    Args:
        request: of MPI.
        posted: (index, bytes) of what this rank posts to others.
        needs: what others must have entered for the call to end.
        memory: tensors that MPI reads or writes; held until the call has ended.
    """

    def __init__(
        self, request: MPI.Request, posted: list[tuple[int, int]], needs: list[Need], memory: Sequence[Tensor]
    ) -> None:
        self.request, self.posted, self.needs, self.memory = request, posted, needs, memory

    def test(self) -> bool:
        try:
            return self.request.Test()
        except MPI.Exception as error:
            raise DivergedError(f"MPI refused: {error}. Ranks of the group passed different sizes") from error


class _Receipt(MpiRequest):
    """A receive that checks how much arrived: MPI takes a shorter message without a word."""

    def test(self) -> bool:
        status = MPI.Status()
        try:
            if not self.request.Test(status):
                return False
        except MPI.Exception as error:
            raise DivergedError(f"recv: more bytes were sent than {_nbytes(self.memory[0])} ({error})") from error
        got, want = status.Get_count(MPI.BYTE), _nbytes(self.memory[0])
        if got != want:
            raise DivergedError(f"recv: {got} bytes arrived, the tensor has {want}; both sides must pass the same size")
        return True


class _Roll(MpiRequest):
    """A barrier that gathers what every rank calls it."""

    def __init__(self, comm: "MpiCommunicator", request: MPI.Request, needs: list[Need], names: Tensor) -> None:
        super().__init__(request, [], needs, [names])  # a barrier counts as no bytes
        self.comm, self.names = comm, names

    def test(self) -> bool:
        if not super().test():
            return False
        said = [bytes(row.tolist()) for row in self.names]
        if any(name != said[self.comm.index] for name in said):
            words = [name[16:].rstrip(b"\0").decode(errors="replace") for name in said]
            each = "; ".join(f"rank {rank}: {word!r}" for rank, word in zip(self.comm.ranks, words, strict=True))
            raise DivergedError(f"ranks of {self.comm} are at different barriers: {each}")
        return True


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
        outgoing, sizes = _vector(leave, self.index)
        incoming, arriving = _vector(arrive, self.index)
        request = self._first.Ialltoallv(outgoing, incoming)
        needs = self._needs([i for i, size in enumerate(arriving) if size])
        return MpiRequest(request, [(i, size) for i, size in enumerate(sizes) if size], needs, [*arrive, *leave])

    def _gather(self, parts: list[Tensor], second: bool) -> Request:
        comm = self._second if second else self._first
        message, counts = _vector(parts, None)
        request = comm.Iallgatherv(MPI.IN_PLACE, message)
        posted = [(i, counts[self.index]) for i in range(self.size) if i != self.index]
        return MpiRequest(request, posted, self._needs([i for i, count in enumerate(counts) if count]), parts)

    def _broadcast(self, x: Tensor, src_index: int) -> Request:
        request = self._first.Ibcast(_whole(x), src_index)
        if self.index == src_index:
            posted, needs = [(i, _nbytes(x)) for i in range(self.size) if i != src_index], self._needs(strict=False)
        else:  # by a tree, so that members in between may be needed too
            between = [i for i in range(self.size) if i != src_index]
            posted, needs = [], self._needs([src_index]) + self._needs(between, strict=False)
        return MpiRequest(request, posted, needs, [x])

    def _barrier(self, name: str) -> Request:
        text = name.encode()
        line = blake2b(text, digest_size=16).digest() + text[: _NAME_BYTES - 16].ljust(_NAME_BYTES - 16, b"\0")
        names = torch.zeros(self.size, _NAME_BYTES, dtype=torch.uint8)
        names[self.index] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        block = [MPI.buffer.fromaddress(names.data_ptr(), _nbytes(names)), _NAME_BYTES, MPI.BYTE]
        return _Roll(self, self._first.Iallgather(MPI.IN_PLACE, block), self._needs(), names)

    def _send(self, x: Tensor, dst_index: int, tag: int) -> Request:
        needs = [self._message(self.index, dst_index, tag, "sent", "received")]
        return MpiRequest(self._messages.Isend(_whole(x), dst_index, tag), [(dst_index, _nbytes(x))], needs, [x])

    def _recv(self, x: Tensor, src_index: int, tag: int) -> Request:
        needs = [self._message(src_index, self.index, tag, "received", "sent")]
        return _Receipt(self._messages.Irecv(_whole(x), src_index, tag), [], needs, [x])

    def _message(self, src_index: int, dst_index: int, tag: int, mine: str, theirs: str) -> Need:
        """Count one message on this side; returns the count that the other side must reach."""
        path = (self.ranks[src_index], self.ranks[dst_index], *self.key[2:], tag)
        self._message_counts[mine, *path] += 1
        peer = self.ranks[dst_index if mine == "sent" else src_index]
        return Need(peer, (theirs, *path), self._message_counts[mine, *path])


class MpiPost:
    """Small pickled messages between the ranks of one MPI communicator that serves nothing else."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._sending: list[MPI.Request] = []

    def send(self, rank: int, item: object) -> None:
        """Post ``item`` to ``rank``."""
        self._sending = [request for request in self._sending if not request.Test()]
        self._sending.append(self._comm.isend(item, rank))

    def collect(self) -> Iterator[object]:
        """Items that have arrived, in order per sender."""
        while (message := self._comm.improbe()) is not None:
            yield message.recv()


class MpiWorld:
    """The ranks of an MPI communicator.

    Args:
        base: all ranks; every one of them constructs its world at the same time.
        report_s: seconds of waiting after which a wait is posted to the others.
    """

    def __init__(self, base: MPI.Intracomm, report_s: float | None = None) -> None:
        self.rank, self.size, self.device = base.rank, base.size, torch.device("cpu")
        self.recorder = Recorder(rank=self.rank)
        self.progress = Progress()
        self.meshes: dict[MeshShape, Mesh] = {}
        self.unwaited: dict[int, Operation] = {}  # started, and neither waited for nor seen done
        self._base, self._groups = base, list[MpiCommunicator]()
        self._control = base.Dup()
        seconds = float(os.environ.get("SHARDLAB_WAIT_REPORT_S", REPORT_S)) if report_s is None else report_s
        self.watch = Watch(self.rank, self.size, MpiPost(self._control), self._counts, seconds)

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> Communicator:
        """Connect this rank to a group it belongs to; every member calls this in the same order."""
        if len(ranks) == 1:
            return SoloCommunicator(ranks, axes, 0, self.recorder, self.progress)
        return self._connect(ranks, axes)

    def mesh(self, shape: MeshShape) -> Mesh:
        """The mesh of a shape, the same one each time; raises DivergedError if ranks ask for different ones."""
        if shape not in self.meshes:
            if self.size > 1:
                self._everyone().barrier(repr(shape))
            self.meshes[shape] = Mesh(shape, self)
        return self.meshes[shape]

    def leave(self) -> list[str]:
        """Tell the others that this rank ends normally and wait until all do.

        Returns:
            Lines on operations that not all ranks took part in.

        Raises:
            CommError: operations were started here and never waited for.
        """
        if self.unwaited:
            ops = "; ".join(str(op) for op in self.unwaited.values())
            raise CommError(f"rank {self.rank} ends with operations that it started and never waited for: {ops}")
        return self.watch.leave()

    def close(self) -> None:
        """Free the MPI communicators; every rank calls it, with nothing under way."""
        for group in self._groups:
            group.free()
        self._control.Free()
        self._groups.clear()

    def _counts(self) -> dict[Key, int]:
        return {key: count for group in self._groups for key, count in group.counts().items()}

    def _everyone(self) -> MpiCommunicator:
        everyone = tuple(range(self.size))
        for group in self._groups:
            if group.axes == ("world",) and group.ranks == everyone:
                return group
        group = self._connect(everyone, ("world",))
        group.recorder = Recorder(self.rank)  # what connects a mesh is not traffic of the program
        return group

    def _connect(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> MpiCommunicator:
        """Create the communicators once all members are known to be here: the calls below block inside MPI."""
        serial = self.watch.meet(ranks, f"the members of group {'+'.join(axes)} of ranks {list(ranks)} to connect it")
        members = self._base.group.Incl(list(ranks))
        first = self._base.Create_group(members)
        members.Free()
        group = MpiCommunicator(self, ranks, axes, serial, first, first.Dup(), first.Dup())
        self._groups.append(group)
        return group
