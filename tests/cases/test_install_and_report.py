"""Reported elsewhere: deepspeedai/DeepSpeed issues 2772 and 5312."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_INS_01_the_report_ends_well_without_compiler_cuda_home_and_path(path: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "CXX"))}
    done = subprocess.run(
        [sys.executable, "-m", "shardlab.engine.cli", "report"],
        env={**kept, "PATH": path},
        capture_output=True,
        text=True,
        timeout=10,  # the case's own limit; it takes about 0.3 s
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "not found" in done.stdout
    for name in ("torch", "mpi4py", "C++ compiler", "CUDA compiler", "GPU", "lockstep"):
        assert name in done.stdout
