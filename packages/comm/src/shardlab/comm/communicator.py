"""The contract of every backend: collectives and point-to-point over one group of ranks.

A group is addressed by *index*, the position in the group, never by global rank. comm sums and nobody in it divides.
Between ``start_<op>`` and ``wait`` the buffers of the call belong to comm: the caller neither reads the output nor
writes the input. All ranks of a group call the same collectives in the same order; waits may come in any order.
"""

from enum import Enum
from typing import Protocol

from torch import Tensor

from shardlab.comm.record import Recorder

__all__ = ["MAX", "MIN", "SUM", "Communicator", "Pending", "ReduceOp"]


class ReduceOp(Enum):
    """How contributions are combined. Sums are for floating types and integers; bool is only moved."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


SUM, MAX, MIN = ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN


class Pending(Protocol):
    """An operation under way. Dropping one without ``wait`` is an error."""

    def wait(self) -> None:
        """Block until the operation has ended on this rank; raises what went wrong."""

    def done(self) -> bool:
        """True once ``wait`` would not block. Never blocks, lets other operations progress."""


class Communicator(Protocol):
    """Collectives and point-to-point over one group.

    Cost: wire bytes below are what this rank posts to other ranks, in the dtype of the tensors that are passed.
    """

    @property
    def index(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def recorder(self) -> Recorder: ...

    def all_reduce(self, x: Tensor, op: ReduceOp = SUM) -> None:
        """Combine ``x`` over the group, in place, in rank order.

        Args:
            x: any shape, same numel and dtype on every rank; floating or integer.
            op: SUM, MAX or MIN.

        Raises:
            ValueError: bool with SUM, complex, or a device that the backend does not serve.

        Cost: 2 (size - 1) / size x bytes of ``x``; the same again as a temporary buffer divided by size.
        """

    def all_gather(self, out: Tensor, shard: Tensor) -> None:
        """Put every rank's ``shard`` one after the other into ``out``.

        Args:
            out: numel = size x numel of ``shard``, same dtype. ``shard`` may be this rank's slice of it (no copy).
            shard: any shape, same numel on every rank.

        Cost: (size - 1) x bytes of ``shard``.
        """

    def reduce_scatter(self, out: Tensor, full: Tensor, op: ReduceOp = SUM) -> None:
        """Combine ``full`` over the group in rank order; keep this rank's chunk of the result in ``out``.

        Args:
            out: any shape; numel = numel of ``full`` / size. It may be a slice of ``full``.
            full: the whole contribution of this rank, chunk i meant for index i.

        Cost: (size - 1) / size x bytes of ``full``, and as much temporary memory.
        """

    def all_to_all(
        self, out: Tensor, inp: Tensor, out_splits: list[int] | None = None, in_splits: list[int] | None = None
    ) -> None:
        """Send block i of ``inp`` to index i; receive the block of index i into block i of ``out``.

        Args:
            out, inp: split along dim 0; same dtype, same shape behind dim 0.
            out_splits, in_splits: rows per index; None = equal blocks. in_splits[i] here equals out_splits[here] at
                index i.

        Cost: bytes of ``inp`` less the block that stays.
        """

    def broadcast(self, x: Tensor, src_index: int) -> None:
        """Copy ``x`` of index ``src_index`` into ``x`` of every other index.

        Cost: the source posts (size - 1) x bytes.
        """

    def send(self, x: Tensor, dst_index: int, tag: int = 0) -> None:
        """Send ``x`` to one index; pairs with its ``recv`` of the same tag, first in, first out.

        Cost: bytes of ``x``.
        """

    def recv(self, x: Tensor, src_index: int, tag: int = 0) -> None:
        """Receive into ``x`` (same numel and dtype as sent)."""

    def barrier(self, name: str) -> None:
        """Return when every rank of the group has called ``barrier`` with the same ``name``."""

    def start_all_reduce(self, x: Tensor, op: ReduceOp = SUM) -> Pending: ...
    def start_all_gather(self, out: Tensor, shard: Tensor) -> Pending: ...
    def start_reduce_scatter(self, out: Tensor, full: Tensor, op: ReduceOp = SUM) -> Pending: ...
    def start_all_to_all(
        self, out: Tensor, inp: Tensor, out_splits: list[int] | None = None, in_splits: list[int] | None = None
    ) -> Pending: ...
    def start_broadcast(self, x: Tensor, src_index: int) -> Pending: ...
    def start_send(self, x: Tensor, dst_index: int, tag: int = 0) -> Pending: ...
    def start_recv(self, x: Tensor, src_index: int, tag: int = 0) -> Pending: ...
    def start_barrier(self, name: str) -> Pending: ...
