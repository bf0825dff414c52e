"""One rank of the pool: takes jobs from a socket, one at a time. Started by ``pool``."""

import importlib
import os
import socket
import sys
import threading
import traceback
from typing import Any

import torch

from shardlab.comm.launcher import detect
from shardlab.comm.startup import start_mpi
from shardlab.plan.mesh import MeshShape
from tests.ranks.pool import receive, send


class Worker:
    """The loop of one rank, and a thread that says what the rank is doing."""

    def __init__(self, path: str) -> None:
        self.everyone = start_mpi(detect(os.environ))
        self.rank = self.everyone.rank
        self.world: Any = None
        self.jobs, self.asks = self._dial(path, "jobs"), self._dial(path, "asks")
        self.main = threading.get_ident()
        threading.Thread(target=self.answer, daemon=True).start()

    def _dial(self, path: str, purpose: str) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.connect(path)
        send(line, (self.rank, purpose))
        return line

    def answer(self) -> None:
        """Tell what the main thread waits for and where it is."""
        try:
            while True:
                receive(self.asks)
                world = self.world
                waiting = world.watch.waiting if world is not None else None
                what = f"it waits for {waiting}" if waiting is not None else "it runs"
                stack = "".join(traceback.format_stack(sys._current_frames()[self.main]))
                send(self.asks, f"{what}\n{stack}")
        except (EOFError, OSError):
            return

    def serve(self) -> None:
        """Run jobs until the line is closed."""
        while True:
            try:
                job = receive(self.jobs)
            except (EOFError, ConnectionError):
                return
            try:
                answer = ("returned", self.work(*job))
            except BaseException:
                answer = ("raised", traceback.format_exc())
            try:
                send(self.jobs, answer)
            except (EOFError, OSError):
                return
            except Exception:
                send(self.jobs, ("raised", "its result cannot be sent:\n" + traceback.format_exc()))

    def work(self, module: str, name: str, axes: dict[str, int], args: tuple[Any, ...]) -> Any:
        """Call one function on a fresh world of the first ranks."""
        from shardlab.comm.mpi_world import MpiWorld

        fn: Any = importlib.import_module(module)
        for part in name.split("."):
            fn = getattr(fn, part)
        shape = MeshShape(axes)
        torch.manual_seed(self.rank)
        members = self.everyone.group.Incl(list(range(shape.size)))
        base = self.everyone.Create_group(members)
        members.Free()
        self.world = MpiWorld(base)
        result = fn(self.world.mesh(shape), *args)
        if self.world.unwaited:
            raise AssertionError(f"never waited for: {'; '.join(map(str, self.world.unwaited.values()))}")
        unmatched = self.world.watch.leave()
        assert not unmatched, unmatched
        self.world.close()
        base.Free()
        self.world = None
        return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    Worker(sys.argv[1]).serve()
