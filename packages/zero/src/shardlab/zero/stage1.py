"""Stage 1: the optimizer state is sharded (ZeRO, section 5.1: P_os).

Each rank updates its part of every parameter, so it needs the averaged gradient of that part only: the all-reduce of
stage 0 becomes a reduce-scatter here and an all-gather of the updated parameters after the step. Same bytes on the
wire.

Deleted against stage 0: (N - 1) / N of the optimizer state.
"""

from torch import Tensor

from shardlab.comm.communicator import Pending
from shardlab.zero.stage0 import Stage0, refresh
from shardlab.zero.unit import FlatGroup, Unit

__all__ = ["Stage1"]


class Stage1(Stage0):
    """Optimizer state on 1/N; whole gradients and parameters on every rank."""

    number = 1

    @property
    def shards(self) -> int:
        """One shard per rank."""
        return self.comm.size

    @property
    def index(self) -> int:
        """The shard of this rank."""
        return self.comm.index

    def start_reduce(self, group: FlatGroup, sending: Tensor) -> tuple[Pending, Tensor]:
        """Start to sum over the ranks; each keeps its part of the sum."""
        part = sending.new_empty(group.layout.shard_numel)
        return self.comm.start_reduce_scatter(part, sending), part

    def after_reduce(self, group: FlatGroup) -> None:
        """The local gradients stay where they are until the next backward writes over them."""

    def after_step(self, units: list[Unit]) -> None:
        """Put the updated parts of all ranks together again."""
        refresh(units)
        under_way = []
        for unit in units:
            with self.comm.recorder.labelled(name=unit.name):
                for group in unit.trained:
                    assert group.full is not None
                    under_way.append(self.comm.start_all_gather(group.full, group.shard))
        for pending in under_way:
            pending.wait()
