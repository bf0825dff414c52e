"""All processes of an MPI communicator: their groups, their control channel, and how they part."""

import os
from collections.abc import Iterator

import torch
from mpi4py import MPI

from shardlab.comm.communicator import Communicator
from shardlab.comm.errors import CommError
from shardlab.comm.mesh import Mesh
from shardlab.comm.mpi import MpiCommunicator
from shardlab.comm.operation import Operation, Progress
from shardlab.comm.record import Recorder
from shardlab.comm.solo import SoloCommunicator
from shardlab.comm.verdict import Key
from shardlab.comm.watch import Watch
from shardlab.plan.mesh import MeshShape

__all__ = ["REPORT_S", "MpiPost", "MpiWorld"]

REPORT_S = 10.0
"""Seconds of waiting after which a rank tells the others what it waits for; SHARDLAB_WAIT_REPORT_S overrides."""


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
        self.abandoned: list[Operation] = []  # waited for until something went wrong
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
        """Free the MPI communicators; every rank calls it, with nothing under way.

        After a failure they are kept: MPI would give their context to a later group, which would take late messages.
        """
        if self.abandoned:
            return
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
