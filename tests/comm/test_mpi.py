"""What only the MPI backend has: its needs, its world, and messages of the wrong size."""

from collections.abc import Callable

import pytest
import torch

from shardlab.comm import DivergedError, Mesh
from shardlab.comm.operation import Operation
from shardlab.comm.watch import Need


def needs_and_bytes(mesh: Mesh) -> dict[str, tuple[list[Need], list[tuple[int, int]]]]:
    """What each call needs of others and posts to them, as its first round was handed to MPI."""
    comm, size, me = mesh["dp"], mesh.size, mesh.rank
    splits = list(range(size))  # nothing to index 0
    starts: dict[str, Callable[[], Operation]] = {
        "all_reduce": lambda: comm.start_all_reduce(torch.ones(size + 1)),
        "all_gather": lambda: comm.start_all_gather(torch.ones(2 * size), torch.ones(2)),
        "broadcast": lambda: comm.start_broadcast(torch.ones(4), 1),
        "all_to_all": lambda: comm.start_all_to_all(
            torch.ones(me * size), torch.ones(sum(splits)), [me] * size, splits
        ),
        "barrier": lambda: comm.start_barrier("here"),
        "send": lambda: comm.start_send(torch.ones(2), (me + 1) % size, tag=4),
        "recv": lambda: comm.start_recv(torch.ones(2), (me - 1) % size, tag=4),
    }
    seen, ops = {}, []
    for kind, start in starts.items():
        ops.append(start())  # seen at once: the next start may post the second round of this one
        seen[kind] = (list(ops[-1]._request.needs), list(ops[-1]._request.posted))
    for op in ops:
        op.wait()
    return seen


def test_needs_and_bytes_are_those_handed_to_mpi(mpi_ranks) -> None:
    seen = mpi_ranks(3)(needs_and_bytes)
    key = ("entered", (0, 1, 2), "dp", 2)  # the second group of these ranks: the world has one of its own
    for rank in range(3):
        others = [r for r in range(3) if r != rank]
        needs, posted = seen[rank]["all_reduce"]  # 4 elements: blocks of 2, 1, 1
        assert needs == [Need(r, key, 1) for r in others]
        assert posted == [(r, (8, 4, 4)[r]) for r in others]
        needs, posted = seen[rank]["all_gather"]
        assert needs == [Need(r, key, 2) for r in others]
        assert posted == [(r, 8) for r in others]
        needs, posted = seen[rank]["broadcast"]
        assert {n.rank for n in needs if n.strict} == (set() if rank == 1 else {1})
        assert posted == ([(0, 16), (2, 16)] if rank == 1 else [])
        needs, posted = seen[rank]["all_to_all"]
        assert [n.rank for n in needs] == (others if rank else []), "index 0 is sent nothing"
        assert posted == [(r, 4 * r) for r in others if r]
        needs, posted = seen[rank]["barrier"]
        assert ([n.rank for n in needs], posted) == (others, [])
        right, left = (rank + 1) % 3, (rank - 1) % 3
        needs, posted = seen[rank]["send"]
        assert needs == [Need(right, ("received", rank, right, "dp", 2, 4), 1)]
        assert posted == [(right, 8)]
        assert seen[rank]["recv"] == ([Need(left, ("sent", left, rank, "dp", 2, 4), 1)], [])


def wrong_sizes(mesh: Mesh) -> list[str]:
    comm, said = mesh["dp"], []
    for sent, room in ((2, 3), (3, 2)):
        if comm.index == 0:
            comm.send(torch.ones(sent), 1)
            continue
        try:
            comm.recv(torch.ones(room), 0)
        except DivergedError as error:
            said.append(f"{error} {error.__notes__}")
    return said


def test_messages_of_the_wrong_size_are_refused(mpi_ranks) -> None:
    _, (short, long) = mpi_ranks(2)(wrong_sizes)
    assert "8 bytes arrived, the tensor has 12" in short
    assert "recv #1 (3 float32, tag 0) from rank 0 on group dp" in short
    assert "more bytes were sent than 8" in long


def barriers(mesh: Mesh) -> str:
    mesh["dp"].barrier("same")
    with pytest.raises(DivergedError) as failure:
        mesh["dp"].barrier("left" if mesh.rank == 0 else "right " + "and so on " * 100)
    mesh["dp"].barrier("same again")
    return str(failure.value)


def test_barriers_of_different_names_raise_on_every_rank(mpi_ranks) -> None:
    for text in mpi_ranks(3)(barriers):
        assert "rank 0: 'left'; rank 1: 'right and so on" in text


def long_names(mesh: Mesh) -> None:
    with pytest.raises(DivergedError):
        mesh["dp"].barrier("x" * 500 + str(mesh.rank))


def test_barrier_names_are_compared_to_their_ends(mpi_ranks) -> None:
    mpi_ranks(2)(long_names)


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
    from shardlab.comm.mpi import MpiWorld
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
