"""Groups and worlds over MPI communicators."""

import pytest
import torch

from shardlab.comm import Mesh


def same_axes_twice(mesh: Mesh) -> int:
    """Two groups of the same ranks and axes name are different groups."""
    first, second = (mesh.world.group(tuple(range(mesh.size)), ("dp",)) for _ in range(2))
    x, y = torch.ones(5), torch.ones(3)
    a, b = first.start_all_reduce(x), second.start_all_reduce(y)
    for pending in (a, b) if mesh.rank == 0 else (b, a):
        pending.wait()
    assert first.key != second.key
    return int(x.sum() + y.sum())


def test_groups_of_the_same_ranks_are_apart(mpi_ranks) -> None:
    assert mpi_ranks(2)(same_axes_twice) == [16, 16]


def many_worlds(mesh: Mesh) -> int:
    """Groups come and go without using MPI's communicators up."""
    from shardlab.comm.mpi_world import MpiWorld
    from shardlab.plan.mesh import MeshShape

    for _ in range(300):
        world = MpiWorld(mesh.world._base)
        x = torch.ones(1)
        world.mesh(MeshShape({"dp": mesh.size}))["dp"].all_reduce(x)
        assert not world.leave()
        world.close()
    return int(x)


@pytest.mark.slow
def test_communicators_are_given_back(mpi_ranks) -> None:
    assert mpi_ranks(2)(many_worlds, timeout_s=120) == [2, 2]
