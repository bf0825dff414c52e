"""Jobs that fail on purpose; each costs the pool a restart, so they have a file of their own."""

import os
import time

import pytest
import torch

from shardlab.comm.mesh import Mesh
from tests.ranks.pool import Pool, RanksFailed


def never_ends(mesh: Mesh) -> None:
    if mesh.rank == 1:
        time.sleep(600)
    mesh["dp"].all_reduce(torch.ones(3))


def dies(mesh: Mesh) -> None:
    if mesh.rank == 1:
        os._exit(7)
    mesh["dp"].barrier("never met")


def drops_a_pending(mesh: Mesh) -> None:
    mesh["dp"].start_all_reduce(torch.ones(3))


def fine(mesh: Mesh) -> int:
    x = torch.ones(1)
    mesh["dp"].all_reduce(x)
    return int(x.item())


def test_a_hang_ends_at_its_limit(pool: Pool) -> None:
    with pytest.raises(RanksFailed) as failure:
        pool.run({"dp": 2}, never_ends, timeout_s=2)
    text = str(failure.value)
    assert "rank 0 did not finish; it waits for all_reduce #1" in text
    assert "rank 1 did not finish; it runs" in text
    assert "time.sleep(600)" in text


def test_a_rank_that_dies_is_named(pool: Pool) -> None:
    with pytest.raises(RanksFailed, match="rank 1 died"):
        pool.run({"dp": 2}, dies)
    assert pool.run({"dp": 2}, fine) == [2, 2]


def test_a_dropped_pending_fails_the_job(pool: Pool) -> None:
    with pytest.raises(RanksFailed, match="never waited for: all_reduce #1"):
        pool.run({"dp": 2}, drops_a_pending)
