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
