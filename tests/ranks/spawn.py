"""Run a small program under a plain mpirun and see how the job ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.ranks.pool import find_mpirun


@dataclass
class Ended:
    """How a job ended; code is None if it had to be killed."""

    code: int | None
    out: str
    err: str
    seconds: float
    at: float  # by time.time()


def mpirun(folder: Path, num_ranks: int, program: str, limit_s: float = 60, **env: str) -> Ended:
    """Run ``program`` on ``num_ranks`` ranks with no interpreter flag; kill the job after ``limit_s``."""
    script = folder / "program.py"
    script.write_text(dedent(program))
    begin = time.monotonic()
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # lines come whole
    path = os.pathsep.join(p for p in sys.path if p)
    job = subprocess.Popen(
        [find_mpirun(), "-n", str(num_ranks), sys.executable, str(script)],
        env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=limit_s)
        code: int | None = job.returncode
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        code = None
    return Ended(code, out, err, time.monotonic() - begin, time.time())
