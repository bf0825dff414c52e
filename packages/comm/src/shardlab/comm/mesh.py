"""A MeshShape whose axes are connected: `mesh["dp"]` is a communicator."""

import difflib
from typing import Protocol

import torch

from shardlab.comm.communicator import Communicator
from shardlab.comm.record import Recorder
from shardlab.plan.mesh import MeshShape

__all__ = ["KNOWN_AXES", "Mesh", "World"]

KNOWN_AXES = ("dp", "tp", "pp", "cp", "ep", "edp")
"""Axes that a mesh may lack: a program for all of them runs on a mesh of some."""


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

        Raises:
            ValueError: an axis that neither the mesh has nor shardlab knows. It would be a group of one by mistake, and
                ranks that should train together would train apart.
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        if names not in self._groups:
            for name in names:
                self._check_axis(name)
            self._groups[names] = self.world.group(self.shape.group(self.rank, *names), names)
        return self._groups[names]

    def _check_axis(self, name: str) -> None:
        known = [*self.shape.axes, *(axis for axis in KNOWN_AXES if axis not in self.shape.axes)]
        if name not in known:
            near = difflib.get_close_matches(name, self.shape.axes, 1, 0.0)[0]
            raise ValueError(
                f"the mesh has no axis {name!r}; its axes are {', '.join(self.shape.axes)}. Did you mean {near!r}? "
                f"Known axes that are absent ({', '.join(known[len(self.shape.axes) :])}) are groups of one"
            )

    def __repr__(self) -> str:
        return f"Mesh({self.shape}, rank {self.rank})"
