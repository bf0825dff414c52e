"""Every instruction set gives the same bits; which one is used can be chosen and is checked."""

import os
import subprocess
import sys

import pytest

from shardlab.native import build_info

pytestmark = pytest.mark.skipif(not build_info().core, reason="the C++ module is not built")

CHECKSUM = """
import torch
from shardlab.native import adamw, build_info, cast, sum_ranks
g = torch.Generator().manual_seed(0)
x = torch.randn(4, 100_003, generator=g)
p, m, v = x[0].clone(), torch.zeros(100_003), torch.zeros(100_003)
h, out = torch.empty(100_003, dtype=torch.bfloat16), torch.empty(100_003)
for step in (1, 2, 3):
    adamw(p, m, v, x[step], step=step, lr=1e-2, copy=h)
sum_ranks(x, out)
f = torch.empty(100_003, dtype=torch.float16)
cast(x[1].contiguous(), f)
words = [t.view(torch.int16).long() for t in (p, m, v, h, out, f)]
print(build_info().isa, [int((w * torch.arange(1, w.numel() + 1)).sum()) for w in words])
"""


def run(code: str, isa: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SHARDLAB_ISA": isa}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_instruction_sets_agree_bit_for_bit() -> None:
    outputs = {}
    for isa in ("generic", ""):  # empty: the best one
        done = run(CHECKSUM, isa)
        assert done.returncode == 0, done.stderr
        name, sums = done.stdout.strip().split(" ", 1)
        outputs[name] = sums
    assert "generic" in outputs
    assert len(set(outputs.values())) == 1


def test_an_instruction_set_that_is_not_there_is_a_reason_that_lists_what_is() -> None:
    done = run("from shardlab.native import build_info; print(build_info().core_reason)", "sse9")
    assert "SHARDLAB_ISA=sse9" in done.stdout
    assert "generic" in done.stdout
