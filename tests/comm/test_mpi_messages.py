"""Messages of the wrong size and barriers of different names are refused, where MPI itself takes them."""

import pytest
import torch

from shardlab.comm import DivergedError, Mesh


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
    assert "8 bytes arrived from rank 0, the tensor has 12" in short
    assert "recv #1 (3 float32, tag 0) from rank 0 on group dp" in short
    assert "more than 8 bytes arrived from rank 0" in long


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


def wrong_collectives(mesh: Mesh, case: str) -> str:
    comm, n = mesh["dp"], mesh.size
    odd = comm.index == 0
    try:
        match case:
            case "size":
                comm.all_reduce(torch.ones(10 if odd else 16))
            case "shard":
                comm.all_gather(torch.ones(n * (2 + odd)), torch.ones(2 + odd))
            case "dtype":
                comm.all_reduce(torch.ones(8, dtype=torch.int32 if odd else torch.float32))
            case "source":
                comm.broadcast(torch.ones(4), 0 if odd else 1)
                comm.barrier("after")
            case "short broadcast":
                comm.broadcast(torch.ones(4 if odd else 5), 0)
            case "kind":
                if odd:
                    comm.reduce_scatter(torch.ones(4), torch.ones(4 * n))
                else:
                    comm.all_gather(torch.ones(4 * n), torch.ones(4))
            case "nothing is sent":
                comm.all_to_all(torch.ones(n), torch.ones(1 if odd else n), None, [1, *[0] * (n - 1)] if odd else None)
    except DivergedError as error:
        return f"{error} {error.__notes__}"
    return ""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("size", "rank 0 is in all_reduce with another size"),
        ("shard", "rank 0 is in all_gather with another size"),
        ("dtype", "rank 0 is in all_reduce with another size, dtype"),
        ("source", "is in "),
        ("short broadcast", "rank 0 is in broadcast with another size"),
        ("kind", "rank 0 is in reduce_scatter; its message has 16 bytes, 16 are expected"),
        ("nothing is sent", "rank 0 is in all_to_all with another size"),
    ],
)
def test_ranks_that_diverge_are_told_apart_by_their_messages(mpi_ranks, size: int, case: str, said: str) -> None:
    results = mpi_ranks(size)(wrong_collectives, case)
    assert any(said in text for text in results), results
