"""Lockstep threads: one runs, and passes the baton only inside communicator calls.

    rank 0  ──run── wait ┐                      ┌ resume ──run── end ┐
    rank 1               └ run ── ends a wait ──┤ ...                └ next ready rank, first in, first out
    caller  start ........ watches the clock ............................ all ended: raise or return

A rank is ready, running, waiting or ended. A rank that waits becomes ready when any round it takes part in ends. If no
rank is ready and some wait, they can never be met: each raises DeadlockError. Nobody takes a lock that outlives a
hand-over here; a lock of the program that is held over a communicator call (functools.cached_property on Python 3.11)
can block the running rank for ever, which only the watchdog sees.
"""

import ctypes
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from shardlab.comm.callsite import Site, call_site
from shardlab.comm.errors import CommError, DeadlockError
from shardlab.comm.rankstate import GlobalState, ThreadState

__all__ = ["RankThread", "Scheduler", "Unwind"]

_OUTER_FRAMES = 5  # of threading and run_ranks, outside the program of a rank
_LOOK_S = 0.5  # after which the caller's thread notices a signal that another thread has received
_GRACE_S = 2.0  # for ranks to unwind after one failed or hangs


class Unwind(BaseException):
    """Ends the other ranks after one has failed; not an Exception, so that ``except Exception`` lets it pass."""


class Status(Enum):
    """What a rank is doing."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class RankThread:
    """The thread of one rank, and what it waits for."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.status = Status.READY
        self.waits_for: object = None
        self.site: Site | None = None
        self.error: Exception | None = None  # raised in this rank when it resumes
        self.state: GlobalState | None = None
        self.result: Any = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self.thread: threading.Thread | None = None
        self.ident = 0  # of the thread


class Scheduler:
    """Runs one function per rank, one rank at a time, and finds out when none can go on.

    Args:
        num_ranks: how many.
        timeout_s: longest time in which no rank makes a call, resumes or ends.
        seed: rank r draws from generators seeded with ``seed + r``.
    """

    def __init__(self, num_ranks: int, timeout_s: float, seed: int) -> None:
        self.ranks = [RankThread(rank) for rank in range(num_ranks)]
        self.timeout_s, self.seed = timeout_s, seed
        self.failure: tuple[int | None, BaseException] | None = None
        self.diagnose: Callable[[str], dict[int, Exception]] | None = None  # a better error per rank than DeadlockError
        self._ready = deque(self.ranks)
        self._running: RankThread | None = None
        self._moved_s = time.monotonic()
        self._abandoned = False
        self._all_ended = threading.Event()
        self._caller: GlobalState | None = None
        self._last_state: GlobalState | None = None

    # ---- the caller's side --------------------------------------------------------------------------------------

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """Call ``body(rank)`` on each rank; return the results in rank order or raise the first exception."""
        inherited = ThreadState()
        self._caller = self._last_state = GlobalState.capture()
        try:
            for rank in self.ranks:
                main = (rank, body, inherited)
                thread = threading.Thread(target=self._main, args=main, name=f"rank {rank.rank}", daemon=True)
                thread.start()
                rank.thread = thread
            self.moved()
            self._pass_on()
            self._watch()
            for rank in self.ranks:
                if rank.thread is not None:
                    rank.thread.join()
        except BaseException as error:  # Ctrl-C in the caller's thread, or the watchdog
            self._abandon(error)
        finally:
            self._caller.install(over=GlobalState.capture())
        if self.failure is not None:
            rank_number, exc = self.failure
            if rank_number is not None:
                exc.add_note(f"on rank {rank_number} of {len(self.ranks)}")
            raise exc
        return [rank.result for rank in self.ranks]

    def _watch(self) -> None:
        """Wait for the end; raise when nothing has moved for ``timeout_s``."""
        while True:
            left_s = self._moved_s + self.timeout_s - time.monotonic()
            if self._all_ended.wait(max(0.0, min(left_s, _LOOK_S))):
                return
            if time.monotonic() - self._moved_s >= self.timeout_s:
                raise TimeoutError(self._describe_hang())

    def _describe_hang(self) -> str:
        running = self._running
        assert running is not None and running.thread is not None
        frame = sys._current_frames().get(running.thread.ident or 0)
        stack = "  (no stack)\n" if frame is None else "".join(traceback.format_stack(frame)[_OUTER_FRAMES:])
        return (
            f"rank {running.rank} of {len(self.ranks)} ran for {self.timeout_s:g} s without a call that hands over. "
            f"It is at\n{stack}Other ranks: {self.describe(but=running)}. "
            "A lock held over a communicator call looks like this"
        )

    def _abandon(self, error: BaseException) -> None:
        """Let all ranks unwind at once, without turns: the running one may hang, or hang on a lock of another."""
        if self.failure is None:
            self.failure = (None, error)
        self._abandoned = True
        running = self._running
        for rank in self.ranks:
            if rank.baton.locked():
                rank.baton.release()
        if running is not None and running.thread is not None and running.thread.is_alive():
            ident = ctypes.c_ulong(running.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Unwind))
        deadline_s = time.monotonic() + _GRACE_S
        for rank in self.ranks:
            if rank.thread is not None:
                rank.thread.join(max(0.0, deadline_s - time.monotonic()))

    # ---- a rank's side ------------------------------------------------------------------------------------------

    def _main(self, rank: RankThread, body: Callable[[int], Any], inherited: ThreadState) -> None:
        """Thread of one rank, from its first turn to its last."""
        with suppress(Unwind):  # which the caller may inject at any line
            rank.baton.acquire()
            try:
                if self.failure is None:
                    self._first_turn(rank)
                    with inherited.entered():
                        rank.result = body(rank.rank)
            except Unwind:
                pass
            except BaseException as error:
                if self.failure is None:
                    self.failure = (rank.rank, error)
            rank.status = Status.ENDED
            if not self._abandoned:
                self._last_state = GlobalState.capture(rank.state)
                self.moved()
                self._pass_on()

    def _first_turn(self, rank: RankThread) -> None:
        """Start from the state of the caller, not from what the rank before has made of it."""
        rank.status, rank.ident = Status.RUNNING, threading.get_ident()
        if self._caller is not None and self._last_state is not None:
            self._caller.install(over=self._last_state)
        GlobalState.seed(self.seed + rank.rank)

    def moved(self) -> None:
        """Take note that the running rank is alive; polling alone is no sign of it."""
        self._moved_s = time.monotonic()

    def check(self, rank: int) -> None:
        """Raise Unwind if another rank has failed; every communicator call starts with this.

        Raises:
            CommError: the caller is not the thread of ``rank``, or ``run_ranks`` has returned.
        """
        if self.failure is not None:
            raise Unwind
        if self.ranks[rank] is not self._running or self.ranks[rank].ident != threading.get_ident():
            now = "no rank" if self._running is None else f"rank {self._running.rank}"
            raise CommError(
                f"a communicator of lockstep rank {rank} was used by thread {threading.current_thread().name!r} while "
                f"{now} runs; only the thread of the rank may use it, and only inside run_ranks"
            )

    def wait(self, rank: int, what: object) -> None:
        """Let others run until a round of this rank has ended; ``what`` is shown in a deadlock."""
        me = self.ranks[rank]
        self.check(rank)
        self.moved()
        me.status, me.waits_for, me.site = Status.WAITING, what, call_site()
        self._hand_over(me)
        me.waits_for = me.site = None
        if me.error is not None:
            error, me.error = me.error, None
            raise error

    def offer(self, rank: int) -> None:
        """Let the others that are ready run first."""
        me = self.ranks[rank]
        self.check(rank)
        if self._ready:
            me.status = Status.READY
            self._ready.append(me)
            self._hand_over(me)

    def wake(self, rank: int) -> None:
        """A round that ``rank`` takes part in has ended: it may go on if it waits."""
        it = self.ranks[rank]
        if it.status is Status.WAITING:
            it.status = Status.READY
            self._ready.append(it)

    def _hand_over(self, me: RankThread) -> None:
        me.state = self._last_state = GlobalState.capture(me.state)
        self._pass_on()
        me.baton.acquire()
        if self._abandoned:
            raise Unwind
        me.status = Status.RUNNING
        over = self._last_state
        if over is not me.state:
            me.state.install(over)
        if self.failure is not None:
            raise Unwind

    def _pass_on(self) -> None:
        """Give the baton to the next ready rank, or tell the caller that all have ended."""
        if not self._ready:
            waiting = [rank for rank in self.ranks if rank.status is Status.WAITING]
            if waiting and self.failure is None:
                self._break_deadlock(waiting)
            for rank in waiting:
                self.wake(rank.rank)
        if self._ready:
            self._running = self._ready.popleft()
            self._running.baton.release()
        else:
            self._running = None
            self._all_ended.set()

    def _break_deadlock(self, waiting: list[RankThread]) -> None:
        """Give each waiting rank the error that it raises when it resumes."""
        text = self.describe()
        better = self.diagnose(text) if self.diagnose is not None else {}
        for rank in waiting:
            rank.error = better.get(rank.rank) or DeadlockError(f"no rank can go on: {text}")

    def describe(self, but: RankThread | None = None) -> str:
        """Say what each rank does."""
        return "; ".join(self._describe(rank) for rank in self.ranks if rank is not but)

    @staticmethod
    def _describe(rank: RankThread) -> str:
        match rank.status:
            case Status.WAITING:
                return f"rank {rank.rank} waits for {rank.waits_for} at {rank.site}"
            case Status.ENDED:
                return f"rank {rank.rank} has returned"
            case _:
                return f"rank {rank.rank} is {rank.status.value}"
