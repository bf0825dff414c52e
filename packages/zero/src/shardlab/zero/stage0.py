"""Stage 0: data parallel. Every rank holds everything; gradients are averaged.

Read stage1, stage2 and stage3 after this one: each deletes one more thing that ranks need not hold twice.
"""

from torch import Tensor

from shardlab.comm.communicator import Communicator, Pending
from shardlab.zero.pool import BufferPool
from shardlab.zero.unit import FlatGroup, Unit

__all__ = ["Stage0"]


class Stage0:
    """What differs between stages: how values lie, how gradients are reduced, what follows an optimizer step.

    Args:
        comm: the ranks over which things are sharded.
        pool: lends flat buffers.
    """

    number = 0
    keeps_full = True  # parameters stay live

    def __init__(self, comm: Communicator, pool: BufferPool) -> None:
        self.comm, self.pool = comm, pool

    @property
    def shards(self) -> int:
        """Into how many shards a flat buffer is cut."""
        return 1

    @property
    def index(self) -> int:
        """Which of the shards this rank owns."""
        return 0

    def settle(self, group: FlatGroup, full: Tensor) -> None:
        """Keep the values: all of them."""
        group.full, group.shard = full, group.part(full)

    def start_reduce(self, group: FlatGroup, sending: Tensor) -> tuple[Pending, Tensor]:
        """Start to sum ``sending`` over the ranks; the second value holds the sum of this rank's part after wait."""
        return self.comm.start_all_reduce(sending), sending

    def after_reduce(self, group: FlatGroup) -> None:
        """The local gradients have been sent and their sum was added up."""
        if group.sending is not None:
            sending, group.sending = group.sending, None
            self.pool.give(sending)

    def after_step(self, units: list[Unit]) -> None:
        """The optimizer has updated this rank's part of every parameter: all of them, so nothing is missing."""
        refresh(units)


def refresh(units: list[Unit]) -> None:
    """Round master weights into the weights that compute."""
    for unit in units:
        for group in unit.trained:
            if group.master is not None:
                group.shard.copy_(group.master)
