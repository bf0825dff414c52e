"""When a backward begins and ends, seen from hooks.

The first hook that fires in a graph task queues a callback that autograd runs when the task is done. If backward
raises, queued callbacks are dropped without being run; the one object that only the callback holds is then collected,
which says so.
"""

import weakref
from collections.abc import Callable

import torch

__all__ = ["BackwardPass"]


class _Token:
    """Held by the queued callback alone."""


class BackwardPass:
    """Calls ``on_begin`` once and then ``on_end`` or ``on_failure`` once for each backward.

    Args:
        on_begin: before any gradient is accumulated.
        on_end: after all have been; may communicate.
        on_failure: backward raised; must not communicate, since the other ranks may be anywhere.
    """

    def __init__(
        self, on_begin: Callable[[], None], on_end: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        self._on_begin, self._on_end, self._on_failure = on_begin, on_end, on_failure
        self._number = 0  # of the backward that runs; tells a late finalizer that its backward is long over
        self.active = False

    @property
    def running(self) -> bool:
        """Whether this thread is inside a backward."""
        return torch._C._current_graph_task_id() != -1

    def begin(self) -> None:
        """A hook fired; the first one of a backward opens it."""
        if self.active or not self.running:
            return
        self.active = True
        self._number += 1
        token, number = _Token(), self._number
        weakref.finalize(token, self._fail, number).atexit = False

        def end() -> None:
            nonlocal token
            try:
                if self.active and number == self._number:
                    self._on_end()
            finally:
                self.active = False
                del token

        self._on_begin()
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _fail(self, number: int) -> None:
        if self.active and number == self._number:
            self.active = False
            self._on_failure()
