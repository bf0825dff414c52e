"""This process as a rank: how it was started, the world it is in, and the meshes over that world.

The one mutable global of shardlab is ``process``, since MPI and the exit hooks exist once per process.
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardlab.comm.exits import Exits
from shardlab.comm.launcher import Launch, detect
from shardlab.comm.mesh import Mesh, World
from shardlab.comm.startup import keep_freed_memory, mpi_has_ended, mpi_is_running, set_threads, start_mpi
from shardlab.plan.mesh import MeshShape

if TYPE_CHECKING:
    from shardlab.comm.mpi_world import MpiWorld

__all__ = ["BACKENDS", "Process", "init", "process", "resolve"]

BACKENDS = ("auto", "mpi", "solo", "torch")


class Process:
    """Owns MPI and the exit hooks.

    Attributes:
        launch: how this process was started.
        world: all ranks; None until ``init``.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.world: World | None = None
        self._mpi_world: MpiWorld | None = None
        self._backend = ""
        if launch.uses_mpi and launch.size > 1:
            Exits(self).install()

    @property
    def rank(self) -> int:
        """Global rank, as the launcher gave it."""
        return self.launch.rank

    def connect(self, backend: str) -> World:
        """The world of this process over ``backend``, made on the first call."""
        if backend not in BACKENDS:
            raise ValueError(f"init: backend is {backend!r}, valid are {', '.join(BACKENDS)}")
        if backend == "auto":
            backend = self._backend or self._choose()
        if self._backend and backend != self._backend:
            raise ValueError(f"init: backend is {backend!r}, but this process is connected over {self._backend!r}")
        if self.world is None:
            self.world = self._make(backend)
            self._backend = backend
        return self.world

    def leave(self) -> list[str]:
        """End normally: joins MPI_Init if this rank never did, so that the others need not wait for it there."""
        if mpi_has_ended():  # the program called MPI_Finalize itself, where the ranks have met
            return []
        return self._over_mpi().leave()

    def abort(self, code: int) -> None:
        """End the job; returns if MPI does not run."""
        if mpi_is_running():
            from mpi4py import MPI

            MPI.COMM_WORLD.Abort(code)

    def _choose(self) -> str:
        if self.launch.kind == "torchrun":
            return "torch"
        return "mpi" if self.launch.size > 1 else "solo"

    def _make(self, backend: str) -> World:
        if backend == "torch":
            raise NotImplementedError(
                f"rank {self.launch.rank}: the torch backend is not built yet; "
                f"start with `mpirun -n {self.launch.size} python ...` in place of torchrun"
            )
        if backend == "solo":
            from shardlab.comm.solo import SoloWorld

            return SoloWorld()
        set_threads(self.launch)
        keep_freed_memory()
        return self._over_mpi()

    def _over_mpi(self) -> "MpiWorld":
        if self._mpi_world is None:
            base = start_mpi(self.launch)
            from shardlab.comm.mpi_world import MpiWorld

            self._mpi_world = MpiWorld(base)
        return self._mpi_world


def resolve(axes: Mapping[str, int] | None, size: int) -> MeshShape:
    """Axis sizes over a world of ``size`` ranks, with None and -1 filled in.

    Raises:
        ValueError: more than one -1, or a product that is not ``size``.
    """
    given = {"dp": size} if axes is None else dict(axes)
    free = [name for name, n in given.items() if n == -1]
    if len(free) > 1:
        raise ValueError(f"init: axes {free} are all -1; only one can be filled in")
    if free:
        known = MeshShape({name: n for name, n in given.items() if n != -1}).size
        if size % known:
            raise ValueError(
                f"init: axis {free[0]!r} is -1, but {size} ranks do not divide by the {known} of the other axes; "
                f"start with a multiple of {known}, such as `mpirun -n {known * max(1, size // known)} python ...`"
            )
        given[free[0]] = size // known
    shape = MeshShape(given)
    if shape.size != size:
        raise ValueError(
            f"init: {shape} needs {shape.size} ranks, this job has {size}; start `mpirun -n {shape.size} python ...`"
        )
    return shape


def init(axes: dict[str, int] | None = None, backend: str = "auto") -> Mesh:
    """Connect this process and return the mesh of its job.

    Under mpirun of MPICH, Open MPI or Slurm the ranks are its processes; alone, the world has one rank. Inside
    ``run_ranks`` it is the rank's own lockstep mesh. Under mpirun torch's threads are limited to the cores of this host
    divided by its ranks, unless OMP_NUM_THREADS is set, and glibc keeps the memory of freed tensors for the next ones,
    unless a MALLOC_ variable is set.

    Args:
        axes: size by axis name, one of them may be -1; None = {"dp": all ranks}. The same axes give the same Mesh
            again, other axes new groups over the same world. Every rank calls with the same axes, in the same order.
        backend: "auto", "mpi" or "solo" (one rank, no MPI).

    Raises:
        ValueError: an unknown backend, or sizes whose product is not the number of ranks.
        DivergedError: ranks gave different axes.

    Cost: the first mesh connects three MPI communicators per axis; no wire bytes are counted.
    """
    world = _lockstep_world()
    if world is None:
        world = process.connect(backend)
    elif axes is None and world.meshes:
        return next(iter(world.meshes.values()))
    return world.mesh(resolve(axes, world.size))


def _lockstep_world() -> World | None:
    """The world of the lockstep rank that runs this, if any does."""
    lockstep = sys.modules.get("shardlab.comm.lockstep")
    return lockstep.current_world() if lockstep is not None else None


process = Process(detect(os.environ))
