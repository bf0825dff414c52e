"""The pool itself: results, sub-worlds, and reuse."""

import os

import pytest
import torch

from shardlab.comm.mesh import Mesh
from tests.ranks.pool import Pool, RanksFailed


def total(mesh: Mesh, factor: float) -> tuple[int, float, int]:
    x = torch.tensor([factor * (mesh.rank + 1)])
    mesh["dp"].all_reduce(x)
    return mesh.rank, x.item(), os.getpid()


def groups(mesh: Mesh) -> dict[str, tuple[int, ...]]:
    return {name: mesh[name].ranks for name in ("dp", "tp")}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_runs_on_a_world_of_any_size(mpi_ranks, size: int) -> None:
    results = mpi_ranks(size)(total, 2.0)
    assert [rank for rank, _, _ in results] == list(range(size))
    assert {value for _, value, _ in results} == {float(size * (size + 1))}


def test_ranks_are_processes_that_stay(mpi_ranks, pool: Pool) -> None:
    first = [pid for _, _, pid in mpi_ranks(4)(total, 1.0)]
    starts = pool.starts
    second = [pid for _, _, pid in mpi_ranks(4)(total, 1.0)]
    assert len(set(first)) == 4
    assert first == second
    assert pool.starts == starts


def test_axes_of_a_mesh(mpi_ranks) -> None:
    results = mpi_ranks({"dp": 2, "tp": 2})(groups)
    assert results[1] == {"dp": (1, 3), "tp": (0, 1)}


def test_refuses_a_world_that_is_too_large(mpi_ranks) -> None:
    with pytest.raises(ValueError, match="need 8 ranks, the pool has 4"):
        mpi_ranks(8)(total, 1.0)


def test_failure_is_an_assertion_error() -> None:
    assert issubclass(RanksFailed, AssertionError)
