"""Stage 2: gradients are sharded too (ZeRO, section 5.2: P_os+g).

Once a unit's gradients have been summed, a rank needs its own part of the sum and nothing else. The wire is that of
stage 1.

Deleted against stage 1: the buffer of local gradients, which goes back to the pool for the next unit.
"""

from shardlab.zero.stage0 import Stage0
from shardlab.zero.stage1 import Stage1
from shardlab.zero.unit import FlatGroup

__all__ = ["Stage2"]


class Stage2(Stage1):
    """Optimizer state and gradients on 1/N; whole parameters on every rank."""

    number = 2

    def after_reduce(self, group: FlatGroup) -> None:
        """Give the local gradients back."""
        Stage0.after_reduce(self, group)
