"""Count, in one step of a real run, what a rank holds, what it sends, and how many bytes it has allocated at once."""

from contextlib import ExitStack
from typing import Any

from torch import nn

from shardlab.comm.mesh import Mesh
from shardlab.engine.allocator import allocator_peak
from shardlab.zero.account import pooled_bytes, state_bytes

__all__ = ["StepCounts"]

COUNTED_STEP = 3  # optimizer state exists, and the order of units is known; the step before it is watched too


class StepCounts:
    """The counts of one step; call ``before`` and ``after`` around each.

    Args:
        mesh: of this rank.
        model: what ``shard`` returned.

    Attributes:
        found: state bytes by category, bytes sent by axis, peak bytes; empty until the step is over.
    """

    least_steps = COUNTED_STEP + 1

    def __init__(self, mesh: Mesh, model: nn.Module) -> None:
        self.mesh, self.model = mesh, model
        self.found: dict[str, Any] = {}
        self._watch = ExitStack()

    def before(self, step: int) -> None:
        """A step begins."""
        if step == COUNTED_STEP - 1:
            self._held = sum(state_bytes(self.model).values()) + pooled_bytes(self.model)
            self._peak = self._watch.enter_context(allocator_peak())
        elif step == COUNTED_STEP:
            self._sent = dict(self.mesh.recorder.wire_bytes)
            self._peak.restart()

    def after(self, step: int) -> None:
        """The optimizer has stepped; gradients are still there."""
        if step == COUNTED_STEP:
            self._watch.close()
            sent = {axis: total - self._sent.get(axis, 0) for axis, total in self.mesh.recorder.wire_bytes.items()}
            peak = self._held + self._peak.peak_bytes
            self.found = {"state": state_bytes(self.model), "wire": sent, "peak_bytes": peak}
