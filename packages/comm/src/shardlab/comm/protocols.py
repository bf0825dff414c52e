"""All that the packages of shardlab know of each other."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from torch import Tensor, nn

from shardlab.comm.communicator import Pending
from shardlab.plan.action import Action, Op

__all__ = ["GradSink", "Handlers", "HasPieces", "Key", "ShardStore"]

Handlers = Mapping[Op, Callable[[Action], None]]  # what a package runs for each kind of action
Key = tuple[str, str]  # (kind, name), such as ("exp_avg", "blocks.0.attn.qkv.weight")


class GradSink(Protocol):
    """Takes gradients that autograd's hooks never see, such as those of a split backward."""

    def add(self, param: nn.Parameter, grad: Tensor, micro_batch: int) -> None:
        """Add the local gradient of one parameter; shape of the parameter."""

    def end(self, micro_batch: int) -> None:
        """Reduce what was added for ``micro_batch``; every rank of the group calls it."""


class ShardStore(Protocol):
    """A place where shards live when they are not in use; one store routes kinds to tiers."""

    def reserve(self, sizes: Mapping[Key, int]) -> None:
        """Make room for these numbers of bytes."""

    def fetch(self, key: Key, out: Tensor) -> Pending:
        """Read the shard into ``out``."""

    def evict(self, key: Key, src: Tensor) -> Pending:
        """Write the shard from ``src``."""

    def close(self) -> None:
        """Give everything back."""


class HasPieces(Protocol):
    """Holds pieces of named tensors; what checkpoints read."""

    def pieces(self) -> Iterable[tuple[str, tuple[int, ...], tuple[int, int], Tensor]]:
        """(name, global shape, [start, stop) in the flattened tensor, 1-D piece)."""
