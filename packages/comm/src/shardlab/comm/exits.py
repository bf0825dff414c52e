"""A rank that ends takes the others along, or lets them go on: never are they left waiting.

    how a rank ends                 before MPI_Init                 after MPI_Init
    exception, sys.exit(1), Ctrl-C  message, SIGTERM to itself      message, MPI_Abort with its code (Ctrl-C: 130)
      exception of a thread
      failing import
    returns, sys.exit(0)            joins MPI_Init, posts "left"    posts "left" and its counts, waits for the others

An uncaught ``sys.exit`` runs no hook. Its exception is told from a caught one by where it dies: nobody caught it if no
Python frame is left when it is destroyed. ``raise SystemExit(1)`` is not seen this way and counts as a return: the
process has its exit code, and whoever needs this rank raises RankLeftError.
"""

import atexit
import fcntl
import os
import signal
import stat
import struct
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NoReturn, Protocol

from shardlab.comm.errors import CommError

__all__ = ["Exits", "Leaver", "exit_code"]

INTERRUPTED = 130


class Leaver(Protocol):
    """What the hooks need to know of the process."""

    @property
    def rank(self) -> int: ...

    def leave(self) -> list[str]:
        """Tell the other ranks that this one ends normally; return once all have, with what they left unmatched."""

    def abort(self, code: int) -> None:
        """End the whole job with ``code``; returns only if there is no MPI to do it."""


def exit_code(error: BaseException | None) -> int:
    """The code of the job when ``error`` ends it: never 0 for an error, 130 for Ctrl-C, what sys.exit was given."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return 0
        return (error.code & 0xFF or 1) if isinstance(error.code, int) else 1
    return 1


class Exits:
    """The hooks of one process.

    Args:
        leaver: the process.
    """

    def __init__(self, leaver: Leaver) -> None:
        self.leaver, self.pid = leaver, os.getpid()
        self.code: int | None = None  # of an uncaught sys.exit
        self._lock = threading.Lock()
        self._ending: int | None = None  # the thread that ends the job

    def install(self) -> None:
        """Take over excepthook, threading.excepthook, sys.exit and atexit."""
        sys.excepthook = self.on_exception
        threading.excepthook = self.on_thread_exception
        sys.exit = self._exit_function()  # type: ignore[assignment]
        atexit.register(self.on_exit)

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """End the job with the traceback."""
        if not self._mine():
            sys.__excepthook__(kind, error, trace)
            return
        self.end(exit_code(error) or 1, "".join(traceback.format_exception(kind, error, trace)))

    def on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        """End the job with the traceback of a thread: what its work is needed for would wait for ever."""
        if not self._mine() or args.exc_type is SystemExit:
            threading.__excepthook__(args)
            return
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        name = args.thread.name if args.thread is not None else "unknown"
        self.end(exit_code(args.exc_value) or 1, f"in thread {name!r}\n" + "".join(lines))

    def on_exit(self) -> None:
        """Leave normally, unless the program ended by an error that reached no hook."""
        if not self._mine():
            return
        error = getattr(sys, "last_value", None)  # set when a hook of somebody else has replaced ours
        if self.code:
            self.end(self.code, f"sys.exit({self.code})\n")
        if error is not None:
            self.end(exit_code(error) or 1, f"ended by {type(error).__name__}: {error}\n")
        try:
            unmatched = self.leaver.leave()
        except CommError as problem:
            self.end(1, f"{type(problem).__name__}: {problem}")
        except BaseException as problem:
            self.end(exit_code(problem) or 1, "".join(traceback.format_exception(problem)))
        if unmatched and self.leaver.rank == 0:
            self.end(1, "the ranks did not all run the same operations: " + "; ".join(unmatched) + "\n")

    def end(self, code: int, message: str) -> NoReturn:
        """Print ``message`` with the rank, once, and end the job."""
        me = threading.get_ident()
        if not self._lock.acquire(blocking=False) and self._ending != me:
            time.sleep(5)  # another thread is ending the job
        self._ending = me  # an interrupt that arrives here comes back in: it must not wait for itself
        for step in (partial(_flush, "stdout"), partial(_flush, "stderr"), partial(self._tell, message)):
            with suppress(Exception):  # a full disk or a closed stream must not keep the job from ending
                step()
        self.leaver.abort(code)
        if _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # mpirun ends a job of which one process dies by a signal
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)  # a handler of the program has taken SIGTERM
        os._exit(code)

    def _tell(self, message: str) -> None:
        text = "".join(f"rank {self.leaver.rank}: {line}\n" for line in message.splitlines())
        os.write(2, text.encode(errors="backslashreplace"))
        _await_reader(1)
        _await_reader(2)

    def _mine(self) -> bool:
        return os.getpid() == self.pid  # not a forked child, such as a data loader's worker

    def _exit_function(self) -> Callable[[object], NoReturn]:
        exits = self

        class Exit(SystemExit):
            """What sys.exit raises; notices when nobody has caught it."""

            def __del__(self) -> None:
                if _in_main_thread() and _no_caller():
                    exits.code = exit_code(self)

        def exit(status: object = None, /) -> NoReturn:
            """Exit the interpreter by raising SystemExit(status)."""
            raise Exit(status)

        return exit


def _await_reader(fd: int, limit_s: float = 1.0) -> None:
    """Return when the launcher has read what was written: mpirun drops what is in its pipes when a job aborts."""
    end = time.monotonic() + limit_s
    try:
        while stat.S_ISFIFO(os.fstat(fd).st_mode) and time.monotonic() < end:
            if struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0] == 0:
                return
            time.sleep(0.001)
    except OSError:
        return  # closed


def _flush(stream: str) -> None:
    getattr(sys, stream).flush()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _no_caller() -> bool:
    """True if the frame that calls this function was called by no Python frame."""
    try:
        sys._getframe(2)
    except ValueError:
        return True
    return False
