"""A rank that fails while its stdout cannot be flushed must end the job: the flush before the abort raised."""

from pathlib import Path

import pytest

from tests.ranks.spawn import mpirun

PROGRAM = """
import sys
import torch
from shardlab.comm import init
mesh = init()
if mesh.rank == 1:
    {how}
    raise ValueError("boom")
mesh["dp"].all_reduce(torch.ones(2))
"""


@pytest.mark.parametrize("how", ["sys.stdout = open('/dev/full', 'w'); print('x')", "sys.stdout = object()"])
def test_the_job_ends_though_stdout_cannot_be_flushed(tmp_path: Path, how: str) -> None:
    ended = mpirun(tmp_path, 3, PROGRAM.format(how=how), limit_s=40)
    assert ended.code not in (None, 0)
    assert "rank 1: ValueError: boom" in ended.err
