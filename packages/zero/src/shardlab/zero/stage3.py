"""Stage 3: parameters are sharded too (ZeRO, section 5.3: P_os+g+p).

A unit's values are gathered when a module, or the gradient that reaches it, needs them, and freed after. That costs one
all-gather in forward and one in backward instead of the one after the step: 3 instead of 2 times the model on the wire.

Deleted against stage 2: (N - 1) / N of the parameters, and the all-gather after the step.
"""

from torch import Tensor

from shardlab.zero.stage0 import refresh
from shardlab.zero.stage2 import Stage2
from shardlab.zero.unit import FlatGroup, Unit

__all__ = ["Stage3"]


class Stage3(Stage2):
    """Everything on 1/N; a unit is whole only while it is used (see gather.py)."""

    number = 3
    keeps_full = False

    def settle(self, group: FlatGroup, full: Tensor) -> None:
        """Keep this rank's part of the values."""
        group.full, group.shard = None, group.part(full).clone()

    def after_step(self, units: list[Unit]) -> None:
        """The next gather brings the updated parts."""
        refresh(units)
