"""Cases of hangs and misleading ends, by id (see cases.yaml)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardlab.comm.mesh import Mesh
from tests.ranks.pool import Pool, RanksFailed
from tests.ranks.spawn import mpirun


@pytest.fixture
def pool() -> Iterator[Pool]:
    ranks = Pool()
    yield ranks
    ranks.stop()


def test_HNG_01_an_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    ended = mpirun(
        tmp_path,
        2,
        """
        import torch
        from shardlab.comm import init

        mesh = init()
        w = torch.ones(3)

        def loss(step):
            if mesh.rank == 1 and step == 2:
                raise ArithmeticError("loss of step 2")
            return w.sum()

        for step in range(4):
            grad = w * loss(step)
            mesh["dp"].all_reduce(grad)
        """,
        limit_s=30,
    )
    assert ended.code not in (None, 0), ended.err
    said = [line for line in ended.err.splitlines() if "ArithmeticError: loss of step 2" in line]
    assert said == ["rank 1: ArithmeticError: loss of step 2"]
    assert sum("Traceback" in line for line in ended.err.splitlines()) == 1


def raises_before_a_barrier(mesh: Mesh) -> None:
    if mesh.rank == 0:
        raise KeyError("the test fails here")
    mesh["dp"].barrier("after the failure")


def fine(mesh: Mesh) -> int:
    x = torch.ones(1)
    mesh["dp"].all_reduce(x)
    return int(x.item())


def test_HNG_04_shows_the_failing_rank_and_where_the_other_waits(pool: Pool) -> None:
    with pytest.raises(RanksFailed) as failure:
        pool.run({"dp": 2}, raises_before_a_barrier)
    text = str(failure.value)
    assert "rank 0 raised" in text
    assert "KeyError: 'the test fails here'" in text
    assert "rank 1 did not finish; it waits for barrier #1 ('after the failure')" in text
    assert "raises_before_a_barrier" in text.split("rank 1 did not finish")[1], "the stack shows the line"
    assert pool.run({"dp": 3}, fine) == [3, 3, 3], "the pool works again"
