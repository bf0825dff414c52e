"""What a rank posted, as spans of a ledger, and the labels that say on whose behalf.

One Recorder belongs to one rank; every communicator of the rank reports to it. Totals are always kept, spans only while
a ledger is attached, so that a run that nobody watches pays two dictionary updates per call.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from shardlab.plan.ledger import Ledger, Span

__all__ = ["Label", "Recorder", "recording"]


@dataclass(frozen=True)
class Label:
    """On whose behalf a call is made: a unit or tensor, a micro-batch, and ``control`` for bookkeeping messages."""

    name: str = ""
    micro_batch: int = 0
    control: bool = False


@dataclass
class Recorder:
    """Counts the wire bytes of one rank and, while a ledger is attached, keeps its spans.

    Attributes:
        rank: global rank.
        step: number of the optimizer step that runs now; whoever drives the loop sets it.
        wire_bytes: bytes posted to other ranks, by axis ("dp", "dp+cp"), control messages left out.
        calls: number of calls by span operation.
    """

    rank: int
    step: int = 0
    label: Label = Label()
    ledger: Ledger | None = None
    wire_bytes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def labelled(
        self, name: str | None = None, micro_batch: int | None = None, control: bool | None = None
    ) -> Iterator[None]:
        """Label the calls made inside; what is None is inherited."""
        before = self.label
        given = {"name": name, "micro_batch": micro_batch, "control": control}
        self.label = replace(before, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        try:
            yield
        finally:
            self.label = before

    def add(self, op: str, axis: str, label: Label, payload_bytes: int, wire_bytes: int, start_s: float) -> None:
        """Enter one finished call; ``op`` becomes "control" when its label says so."""
        op = "control" if label.control else op
        self.calls[op] += 1
        if not label.control:
            self.wire_bytes[axis] += wire_bytes
        if self.ledger is not None:
            end_s = time.perf_counter()
            span = Span(
                rank=self.rank,
                step=self.step,
                micro_batch=label.micro_batch,
                op=op,
                name=label.name,
                axis=axis,
                payload_bytes=payload_bytes,
                wire_bytes=wire_bytes,
                start_s=start_s,
                end_s=end_s,
            )
            self.ledger.append(span)


@contextmanager
def recording(recorder: Recorder) -> Iterator[Ledger]:
    """Attach a fresh ledger to ``recorder`` for the length of the block."""
    before, recorder.ledger = recorder.ledger, Ledger()
    try:
        yield recorder.ledger
    finally:
        recorder.ledger = before
