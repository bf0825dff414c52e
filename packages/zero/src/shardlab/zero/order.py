"""The order in which units were used in the last pass; it steers prefetch and nothing else."""

from shardlab.zero.unit import Unit

__all__ = ["UseOrder"]


_LONGEST = 1 << 16


class UseOrder:
    """Remembers one pass (forward and its backward) per mode and says which unit comes next.

    A pass that leaves the remembered order gets no more predictions, so a model that branches is still right.
    """

    def __init__(self) -> None:
        self._last: dict[bool, list[Unit]] = {}
        self._now: list[Unit] = []
        self._training = False
        self._follows = True

    def begin(self, training: bool) -> None:
        """A forward of the whole model starts."""
        self.end()
        self._training = training

    def end(self) -> None:
        """The pass is over; remember it."""
        if self._now:
            self._last[self._training] = self._now
        self._now, self._follows = [], True

    def use(self, unit: Unit) -> Unit | None:
        """Enter a use; return the unit that came next after it in the last pass, if this pass has followed that one."""
        if len(self._now) == _LONGEST:  # only sub-modules are called, without backward: no pass ever begins or ends
            self.end()
        last, at = self._last.get(self._training, []), len(self._now)
        self._now.append(unit)
        self._follows = self._follows and at < len(last) and last[at] is unit
        return last[at + 1] if self._follows and at + 1 < len(last) else None
