"""MPI ranks that outlive tests: one mpirun per pytest worker, to which tests send functions.

    pytest                                            mpirun -n 4 python -m tests.ranks.worker
    Pool.run(n, axes, fn, args)  -- job, per rank ->  ranks 0..n-1 connect a world of their own and call fn(mesh, *args)
                                 <- result, or traceback --

A job that fails on one rank leaves the others waiting: they are asked where, then all are killed and started anew at
the next job. Functions travel by name, so they live at module level; arguments and results are pickled.
"""

import os
import pickle
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LARGEST = 4
GRACE_S = 1.5  # that the other ranks have after the first failed


class RanksFailed(AssertionError):
    """A job failed; the message has the traceback of every rank that raised and where the others were."""


def send(to: socket.socket, item: object) -> None:
    data = pickle.dumps(item)
    to.sendall(struct.pack("<Q", len(data)) + data)


def receive(source: socket.socket) -> Any:
    size = struct.unpack("<Q", _exactly(source, 8))[0]
    return pickle.loads(_exactly(source, size))


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = source.recv(count - len(data))
        if not chunk:
            raise EOFError("the other side has closed")
        data += chunk
    return bytes(data)


class Pool:
    """Up to ``LARGEST`` MPI ranks, started at the first job."""

    def __init__(self) -> None:
        self.starts = 0
        self._job: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ranks: list[socket.socket] = []  # jobs and results
        self._asks: list[socket.socket] = []  # questions to a thread of each rank

    def run(self, axes: Mapping[str, int], fn: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
        """Call ``fn(mesh, *args)`` on each rank of a mesh; returns the results in rank order.

        Raises:
            RanksFailed: a rank raised, died, or did not finish within ``timeout_s``.
        """
        size = 1
        for n in axes.values():
            size *= n
        if not 1 <= size <= LARGEST:
            raise ValueError(f"axes {dict(axes)} need {size} ranks, the pool has {LARGEST}")
        self._start()
        for rank in self._ranks[:size]:
            send(rank, (fn.__module__, fn.__qualname__, dict(axes), args))
        answers = self._answers(size, timeout_s)
        if all(kind == "returned" for kind, _ in answers.values()) and len(answers) == size:
            return [answers[rank][1] for rank in range(size)]
        failed = {rank: answer for rank, answer in sorted(answers.items()) if answer[0] != "returned"}
        lines = [f"rank {rank} {how}:\n{text}" for rank, (how, text) in failed.items()]
        lines += [f"rank {rank} did not finish; {self._where(rank)}" for rank in range(size) if rank not in answers]
        self.stop()
        raise RanksFailed("\n".join(lines))

    def _answers(self, size: int, timeout_s: float) -> dict[int, tuple[str, Any]]:
        answers: dict[int, tuple[str, Any]] = {}
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for rank, source in enumerate(self._ranks[:size]):
                selector.register(source, selectors.EVENT_READ, rank)
            while len(answers) < size and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fileobj)
                    try:
                        answers[key.data] = receive(self._ranks[key.data])
                    except (EOFError, ConnectionError) as error:
                        answers[key.data] = ("died", f"{error}; what it printed is above")
                    if answers[key.data][0] != "returned":
                        end = min(end, time.monotonic() + GRACE_S)
        return answers

    def _where(self, rank: int) -> str:
        try:
            self._asks[rank].settimeout(2)
            send(self._asks[rank], "where")
            return str(receive(self._asks[rank]))
        except (OSError, EOFError):
            return "it does not answer: it is inside native code that holds the interpreter lock, or has died"

    def _start(self) -> None:
        if self._job is not None and self._job.poll() is None:
            return
        self.stop()
        self.starts += 1
        self._folder = tempfile.TemporaryDirectory(prefix="ranks")
        path = Path(self._folder.name) / "socket"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(path))
            door.listen(2 * LARGEST)
            door.settimeout(60)
            command = [find_mpirun(), "-n", str(LARGEST), sys.executable, "-m", "tests.ranks.worker", str(path)]
            paths = os.pathsep.join([os.getcwd(), *(p for p in sys.path if p)])
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
            self._job = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
            lines: dict[tuple[int, str], socket.socket] = {}
            for _ in range(2 * LARGEST):
                line, _ = door.accept()
                line.settimeout(None)
                lines[receive(line)] = line
        self._ranks = [lines[rank, "jobs"] for rank in range(LARGEST)]
        self._asks = [lines[rank, "asks"] for rank in range(LARGEST)]

    def stop(self) -> None:
        """End the ranks: those at work are killed."""
        for line in (*self._ranks, *self._asks):
            line.close()
        self._ranks, self._asks = [], []
        if self._job is not None:
            try:
                self._job.wait(1.0)  # ranks without a job see the closed line and leave
            except subprocess.TimeoutExpired:
                os.killpg(self._job.pid, signal.SIGKILL)
                self._job.wait()
            self._job = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def find_mpirun() -> str:
    """The mpirun that belongs to this environment."""
    found = shutil.which("mpirun", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    assert found is not None, "mpirun is missing; install mpich"
    return found
