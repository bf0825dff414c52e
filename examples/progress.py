"""A progress bar of training on rank 0: step, loss, tokens/s, resident memory. Ten lines where output is a file."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from shardlab.engine.allocator import resident_bytes

__all__ = ["Progress"]


class Progress:
    """Shows how training goes.

    Args:
        steps: how many there will be.
        shown: False on all ranks but one.
        bar: draw a live bar even though stderr is no terminal, as under mpirun, which passes on what its ranks write.
    """

    def __init__(self, steps: int, shown: bool, bar: bool = False) -> None:
        self.steps, self.shown = steps, shown
        self.live = shown and (bar or sys.stderr.isatty())
        self._bar = RichProgress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=self.live or None),
            disable=not self.live,
        )
        self._task = self._bar.add_task("", total=steps, status="")

    def show(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Say where training is after ``step`` steps."""
        memory = resident_bytes() / 2**20
        status = f"loss {loss:.3f}  {tokens_per_s:,.0f} tokens/s  process {memory:,.0f} MiB"
        self._bar.update(self._task, completed=step, status=status)
        if self.shown and not self.live and step % max(1, self.steps // 10) == 0:
            print(f"step {step}/{self.steps}  {status}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
