"""Which launcher's variables are found, and that those of a parent process are not taken for one's own."""

import os
import socket

import pytest

from shardlab.comm.launcher import Launch, detect


def test_alone() -> None:
    assert detect({}) == Launch("alone", 0, 1, 1)
    assert not detect({}).uses_mpi


@pytest.mark.parametrize(
    ("env", "launch"),
    [
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, Launch("mpich", 2, 4, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Launch("mpich", 1, 3, 3)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            Launch("openmpi", 1, 8, 4),
        ),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_ID": "0"}, Launch("slurm", 5, 6, 6)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, Launch("torchrun", 1, 2, 2)),
    ],
)
def test_families(env: dict[str, str], launch: Launch) -> None:
    assert detect(env) == launch
    assert launch.uses_mpi == (launch.kind != "torchrun")


def test_a_batch_script_of_slurm_is_no_rank() -> None:
    assert detect({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "6"}).kind == "alone"


def test_the_socket_of_mpich_must_be_open_here() -> None:
    env = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert detect({**env, "PMI_FD": str(ours.fileno())}).kind == "mpich"
    with open(os.devnull) as other:
        assert detect({**env, "PMI_FD": str(other.fileno())}).kind == "alone"
        closed = other.fileno()
    assert detect({**env, "PMI_FD": str(closed)}).kind == "alone"
