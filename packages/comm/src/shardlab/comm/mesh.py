"""A MeshShape whose axes are connected: `mesh["dp"]` is a communicator."""

from typing import Protocol

import torch

from shardlab.comm.communicator import Communicator
from shardlab.comm.record import Recorder
from shardlab.plan.mesh import MeshShape

__all__ = ["Mesh", "World"]


class World(Protocol):
    """All ranks of a run, seen from one of them; each backend has one."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def meshes(self) -> "dict[MeshShape, Mesh]": ...

    def mesh(self, shape: MeshShape) -> "Mesh":
        """The mesh of a shape: the same one each time."""

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> Communicator:
        """Connect this rank to a group it belongs to; every member calls this in the same order."""


class Mesh:
    """The groups of one rank, by axis name.

    Args:
        shape: axis names and sizes; their product is the size of the world.
        world: the backend.
    """

    def __init__(self, shape: MeshShape, world: World) -> None:
        if shape.size != world.size:
            raise ValueError(f"mesh {shape} needs {shape.size} ranks, the world has {world.size}")
        self.shape, self.world = shape, world
        self._groups: dict[tuple[str, ...], Communicator] = {}
        for axis in shape.axes:  # connected at once, in one order, while all ranks are known to be here
            self[axis]

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.world.rank

    @property
    def size(self) -> int:
        """Number of ranks of the world."""
        return self.world.size

    @property
    def device(self) -> torch.device:
        """Device of this rank."""
        return self.world.device

    @property
    def recorder(self) -> Recorder:
        """Where every communicator of this rank reports."""
        return self.world.recorder

    def __getitem__(self, axes: str | tuple[str, ...]) -> Communicator:
        """The group that spans ``axes`` through this rank; an absent axis counts as one of size 1.

        The first use of a tuple of axes connects the group and must happen on all its ranks.
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        if names not in self._groups:
            self._groups[names] = self.world.group(self.shape.group(self.rank, *names), names)
        return self._groups[names]

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, rank {self.rank})"
