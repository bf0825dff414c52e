"""The settings before MPI_Init."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.comm.startup import mpi_is_running, num_cores
from tests.ranks.spawn import mpirun

PROGRAM = """
import os
os.environ.pop("MPIR_CVAR_ENABLE_HEAVY_YIELD", None) if {forget} else None
from shardlab.comm.startup import mpi_is_running
from shardlab.comm import init
assert not mpi_is_running()
init()
assert mpi_is_running()
print("yields", os.environ.get("MPIR_CVAR_ENABLE_HEAVY_YIELD"))
"""


def test_mpi_does_not_run_here() -> None:
    assert not mpi_is_running()


def test_cores_are_those_this_process_may_use() -> None:
    assert num_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("forget", "expected"), [(True, "1"), (False, "0")])
def test_ranks_that_share_cores_yield_unless_told(tmp_path: Path, forget: bool, expected: str) -> None:
    ranks = min(4, num_cores() + 1)
    if ranks <= num_cores():
        pytest.skip("more cores than ranks that a test may start")
    ended = mpirun(tmp_path, ranks, PROGRAM.format(forget=forget), MPIR_CVAR_ENABLE_HEAVY_YIELD="0")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [f"yields {expected}"] * ranks


USERS_OWN = """
from mpi4py import MPI
assert MPI.Is_initialized()
from shardlab.comm import init
mesh = init()
assert (mesh.rank, mesh.size) == (MPI.COMM_WORLD.rank, 2)
mesh["dp"].barrier("with MPI of the program's own")
assert MPI.COMM_WORLD.allreduce(1) == 2
"""


def test_mpi_that_the_program_started_is_used(tmp_path: Path) -> None:
    ended = mpirun(tmp_path, 2, USERS_OWN)
    assert (ended.code, ended.err) == (0, "")


FAULTS = """
import resource, torch
from shardlab.comm.startup import keep_freed_memory
print(keep_freed_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(4)][-1])  # the first ones still find their place
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    seen = {}
    for given in ({}, {"MALLOC_ARENA_MAX": "1"}):
        out = subprocess.run([sys.executable, "-c", FAULTS], env={**own, **given}, capture_output=True, text=True)
        kept, faults = out.stdout.split()
        seen[kept] = int(faults)
    pages = 2**26 // os.sysconf("SC_PAGESIZE")
    assert seen["True"] < pages / 50
    assert set(seen) == {"True", "False"}, "a MALLOC_ variable leaves the choice to its user"
