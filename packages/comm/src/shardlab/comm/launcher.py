"""How this process was started: by mpirun (MPICH, Open MPI, Slurm), by torchrun, or alone."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Launch", "detect"]


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process.

    Attributes:
        kind: "mpich", "openmpi", "slurm", "torchrun" or "alone".
        rank: global rank.
        size: number of ranks of the job.
        local_size: number of ranks on this host; ``size`` where the launcher does not say.
    """

    kind: str = "alone"
    rank: int = 0
    size: int = 1
    local_size: int = 1

    @property
    def uses_mpi(self) -> bool:
        """True if MPI connects the ranks of this job."""
        return self.kind in ("mpich", "openmpi", "slurm")


# kind, then the variables of rank, size and number of ranks on this host
_FAMILIES = (
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)


def detect(env: Mapping[str, str]) -> Launch:
    """Read the launcher's variables.

    Args:
        env: the environment of this process, normally ``os.environ``.

    Returns:
        The launch; "alone" when no launcher is found, or when the variables are those of a parent process (a worker
        that a rank has started inherits them, but not the launcher's socket).
    """
    for kind, rank, size, local in _FAMILIES:
        if rank in env and size in env and not _inherited(kind, env):
            world = int(env[size])
            return Launch(kind, int(env[rank]), world, int(env.get(local, world)))
    return Launch()


def _inherited(kind: str, env: Mapping[str, str]) -> bool:
    if kind == "slurm":  # a batch script sees SLURM_PROCID too; only srun starts steps of tasks
        return "SLURM_STEP_ID" not in env
    if kind != "mpich" or "PMI_FD" not in env:
        return False
    try:
        return not stat.S_ISSOCK(os.fstat(int(env["PMI_FD"])).st_mode)
    except OSError:
        return True
