"""MPI_Init: before it, the settings; during it, a live Ctrl-C, though no Python signal handler runs there."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from shardlab.comm.launcher import Launch

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["keep_freed_memory", "mpi_has_ended", "mpi_is_running", "num_cores", "set_threads", "start_mpi"]


def start_mpi(launch: Launch) -> "MPI.Intracomm":
    """Initialise MPI unless that has been done; returns COMM_WORLD.

    Ranks that share cores leave them to each other while they wait inside MPI (MPICH's heavy yield); a value of
    MPIR_CVAR_ENABLE_HEAVY_YIELD in the environment is kept.
    """
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # initialised below, finalised by mpi4py at exit
    if launch.local_size > num_cores():
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
    from mpi4py import MPI

    if not MPI.Is_initialized():
        with _interrupt_ends_process():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)  # a thread that fails must be able to abort
    return MPI.COMM_WORLD


def mpi_is_running() -> bool:
    """True between MPI_Init and MPI_Finalize, whoever called them."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and bool(MPI.Is_initialized()) and not MPI.Is_finalized()


def mpi_has_ended() -> bool:
    """True after MPI_Finalize."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and bool(MPI.Is_finalized())


def num_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def set_threads(launch: Launch) -> None:
    """Share the cores of this host between its ranks, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, num_cores() // launch.local_size))


def keep_freed_memory() -> bool:
    """Let glibc keep large blocks that are freed, unless a MALLOC_ variable or another allocator decides.

    By default each large tensor is mapped anew and the kernel clears it page by page, which takes several times as long
    as filling it; a training step makes the same tensors over and over. The process then stays as large as its peak.

    Returns:
        True if it could be set.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    trim_threshold, mmap_max = -1, -4  # names of <malloc.h>: M_TRIM_THRESHOLD, M_MMAP_MAX
    return bool(mallopt(trim_threshold, -1)) and bool(mallopt(mmap_max, 0))


@contextmanager
def _interrupt_ends_process() -> Iterator[None]:
    """Let SIGINT print the stack and end the process; mpi4py holds the interpreter lock during MPI_Init."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.register(signal.SIGINT, all_threads=False, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
