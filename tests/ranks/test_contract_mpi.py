"""The contract on MPI ranks: the same functions as on lockstep ranks."""

from collections.abc import Callable

import pytest
import torch

from shardlab.comm import Mesh
from tests.comm.contract import CONTRACT, SUBGROUPS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("fn", CONTRACT, ids=lambda fn: fn.__name__)
def test_contract(mpi_ranks, fn: Callable[[Mesh], None], size: int) -> None:
    assert mpi_ranks(size)(fn) == [None] * size


@pytest.mark.parametrize("fn", SUBGROUPS, ids=lambda fn: fn.__name__)
def test_contract_of_subgroups(mpi_ranks, fn: Callable[[Mesh], None]) -> None:
    assert mpi_ranks({"pp": 2, "dp": 2})(fn) == [None] * 4


@pytest.mark.parametrize("fn", CONTRACT, ids=lambda fn: fn.__name__)
def test_contract_within_a_larger_mesh(mpi_ranks, fn: Callable[[Mesh], None]) -> None:
    assert mpi_ranks({"dp": 2, "tp": 2})(fn) == [None] * 4


def more_than_two_gib(mesh: Mesh) -> None:
    """Blocks of more than 2^31 bytes in a broadcast, a message, a gather and an exchange, compared at their ends."""
    comm, numel = mesh["dp"], 2**31 + 4096
    marks = [0, 1, 2**31 - 1, 2**31, numel - 1]
    x = torch.zeros(numel, dtype=torch.uint8)
    if comm.index == 1:
        x[marks] = torch.arange(1, 6, dtype=torch.uint8)
    comm.broadcast(x, 1)
    assert x[marks].tolist() == [1, 2, 3, 4, 5]
    if comm.index == 0:
        x.fill_(7)
        comm.send(x, 1, tag=3)
    else:
        comm.recv(x, 0, tag=3)
    assert x[marks].tolist() == [7] * 5
    assert int(x[:: 2**20].sum()) == 7 * (numel // 2**20 + 1)
    leaves, arrives = (numel, 0) if comm.index == 0 else (0, numel)
    received = torch.zeros(arrives, dtype=torch.uint8)
    comm.all_to_all(received, x[:leaves], [arrives, 0], [0, leaves])
    assert comm.index == 0 or received[marks].tolist() == [7] * 5
    del x, received
    out = torch.zeros(2 * numel, dtype=torch.uint8)
    shard = out[comm.index * numel :][:numel]
    shard.fill_(comm.index + 1)
    comm.all_gather(out, shard)
    for index in range(2):
        assert out[[index * numel + mark for mark in marks]].tolist() == [index + 1] * 5


@pytest.mark.slow
def test_more_than_two_gib(mpi_ranks) -> None:
    assert mpi_ranks(2)(more_than_two_gib, timeout_s=300) == [None, None]


def sum_of_more_than_two_gib(mesh: Mesh) -> float:
    x = torch.full((2**30 + 1024,), 1.5, dtype=torch.float16)
    mesh["dp"].all_reduce(x)
    assert x.min() == x.max()
    return float(x[-1])


@pytest.mark.slow
def test_sum_of_more_than_two_gib(mpi_ranks) -> None:
    assert mpi_ranks(2)(sum_of_more_than_two_gib, timeout_s=300) == [3.0, 3.0]
