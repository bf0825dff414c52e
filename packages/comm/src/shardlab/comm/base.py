"""Every collective, written once over the message rounds that a backend provides.

A backend (lockstep, mpi, dry) subclasses BaseCommunicator and gives the abstract methods below. They see 1-D contiguous
tensors only and never this rank's own block: copying that is done here. All arithmetic happens here too
(``reduction.combine``), so a backend moves bytes and nothing else, and every backend gives the same bits.

Arguments are checked before anything is posted, the same on every rank, so that a wrong call raises everywhere instead
of leaving the others waiting.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from shardlab.comm import check
from shardlab.comm.communicator import SUM, ReduceOp
from shardlab.comm.operation import Loan, Operation, Progress, Request, Rounds
from shardlab.comm.record import Recorder
from shardlab.comm.reduction import combine, split_evenly

__all__ = ["BaseCommunicator", "blocks", "same_memory"]

RoundsOf = Callable[[Tensor, Tensor], Rounds]


def blocks(x: Tensor, splits: list[int]) -> list[Tensor]:
    """Cut 1-D ``x`` into consecutive views of ``splits`` elements."""
    return list(x.split_with_sizes(splits))


def same_memory(a: Tensor, b: Tensor) -> bool:
    """True if two contiguous tensors of one numel are the same elements; also for fake ones, which have no address."""
    return a.storage_offset() == b.storage_offset() and a.untyped_storage()._cdata == b.untyped_storage()._cdata


class BaseCommunicator(ABC):
    """A Communicator over the message rounds of a backend.

    Args:
        ranks: global ranks of the group, in index order.
        axes: names of the mesh axes that the group spans.
        index: position of this rank in ``ranks``.
        recorder: of this rank.
        progress: of this rank, shared by all its groups.
        device_type: the device whose tensors the backend moves.
    """

    deterministic = True
    operation_type: type[Operation] = Operation

    def __init__(
        self,
        ranks: tuple[int, ...],
        axes: tuple[str, ...],
        index: int,
        recorder: Recorder,
        progress: Progress,
        device_type: str = "cpu",
    ) -> None:
        self.ranks, self.axes, self.index, self.size = ranks, axes, index, len(ranks)
        self.recorder, self.progress, self.device_type = recorder, progress, device_type
        self.posting: Operation | None = None  # whose round is being posted, for the backend's messages
        self.entered = 0  # collectives that this rank has started on this group
        self.sent: Counter[int] = Counter()  # messages started, by index of the receiver
        self.received: Counter[int] = Counter()  # messages asked for, by index of the sender

    def __str__(self) -> str:
        return f"group {'+'.join(self.axes)} of ranks {list(self.ranks)}"

    # ---- what a backend provides -------------------------------------------------------------------------------

    @abstractmethod
    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> Request:
        """Send ``leave[i]`` to index i, receive its block into ``arrive[i]``; entries of the own index are ignored."""

    @abstractmethod
    def _gather(self, parts: list[Tensor], second: bool) -> Request:
        """Send ``parts[index]`` to all and receive theirs into the other ``parts``.

        ``second`` marks the second round of an operation. It needs a channel of its own: first and second rounds of
        different operations interleave differently on different ranks.
        """

    @abstractmethod
    def _broadcast(self, x: Tensor, src_index: int) -> Request:
        """Copy ``x`` of the source into ``x`` of the others."""

    @abstractmethod
    def _barrier(self, name: str) -> Request:
        """End when all ranks of the group are here under the same name."""

    @abstractmethod
    def _send(self, x: Tensor, dst_index: int, tag: int) -> Request:
        """Send ``x``."""

    @abstractmethod
    def _recv(self, x: Tensor, src_index: int, tag: int) -> Request:
        """Receive into ``x``."""

    @abstractmethod
    def block_until_finished(self, op: Operation) -> None:
        """Return once ``op.test()`` is true; raise when it can no longer become true."""

    def _lend(self, out: Tensor | None, inp: Tensor | None, reads_out: bool) -> Loan:
        """Tensors to work on in place of ``out`` and ``inp``; ``reads_out``: the content of ``out`` is input too."""
        return Loan.of(out, inp)

    # ---- collectives -------------------------------------------------------------------------------------------

    def start_all_reduce(self, x: Tensor, op: ReduceOp = SUM) -> Operation:
        check.reducible(self, "all_reduce", x, op)
        check.writable(self, "all_reduce", x)
        return self._start("all_reduce", partial(self._all_reduce, op), x, None, f"{op.value} of {check.describe(x)}")

    def _all_reduce(self, op: ReduceOp, out: Tensor, _: Tensor) -> Rounds:
        parts = blocks(out, split_evenly(out.numel(), self.size))
        yield from self._exchange_and_combine(op, parts[self.index], parts)
        if self.size > 1:
            yield self._gather(parts, second=True)

    def start_reduce_scatter(self, out: Tensor, full: Tensor, op: ReduceOp = SUM) -> Operation:
        check.reducible(self, "reduce_scatter", full, op)
        check.sizes(self, "reduce_scatter", whole=("full", full), part=("out", out))
        detail = f"{op.value} of {check.describe(full)}"
        return self._start("reduce_scatter", partial(self._reduce_scatter, op), out, full, detail)

    def _reduce_scatter(self, op: ReduceOp, out: Tensor, full: Tensor) -> Rounds:
        return self._exchange_and_combine(op, out, blocks(full, [out.numel()] * self.size))

    def _exchange_and_combine(self, op: ReduceOp, out: Tensor, parts: list[Tensor]) -> Rounds:
        """Send part i to index i; combine what arrives with the own part, in rank order, into ``out``."""
        own = parts[self.index]
        sizes = [0 if i == self.index else own.numel() for i in range(self.size)]
        arrive = blocks(own.new_empty(sum(sizes)), sizes)
        if self.size > 1:
            yield self._exchange(arrive, parts)
        arrive[self.index] = own
        combine(arrive, out, op)

    def start_all_gather(self, out: Tensor, shard: Tensor) -> Operation:
        check.sizes(self, "all_gather", whole=("out", out), part=("shard", shard))
        return self._start("all_gather", self._all_gather, out, shard, check.describe(shard))

    def _all_gather(self, out: Tensor, shard: Tensor) -> Rounds:
        parts = blocks(out, [shard.numel()] * self.size)
        if not same_memory(parts[self.index], shard):
            parts[self.index].copy_(shard)
        if self.size > 1:
            yield self._gather(parts, second=False)

    def start_all_to_all(
        self, out: Tensor, inp: Tensor, out_splits: list[int] | None = None, in_splits: list[int] | None = None
    ) -> Operation:
        arrive, leave = check.splits(self, out, inp, out_splits, in_splits)
        detail = f"{inp.dtype}, {'equal blocks' if in_splits is None else 'given splits'}"
        return self._start("all_to_all", partial(self._all_to_all, arrive, leave), out, inp, detail)

    def _all_to_all(self, out_numels: list[int], in_numels: list[int], out: Tensor, inp: Tensor) -> Rounds:
        arrive, leave = blocks(out, out_numels), blocks(inp, in_numels)
        arrive[self.index].copy_(leave[self.index])
        if self.size > 1:
            yield self._exchange(arrive, leave)

    def start_broadcast(self, x: Tensor, src_index: int) -> Operation:
        check.writable(self, "broadcast", x)
        check.peer(self, "broadcast", "src_index", src_index, other=False)
        detail = f"{check.describe(x)} from index {src_index}"
        source = src_index == self.index
        return self._start(
            "broadcast", partial(self._copy_to_all, src_index), None if source else x, x if source else None, detail
        )

    def _copy_to_all(self, src_index: int, out: Tensor, inp: Tensor) -> Rounds:
        if self.size > 1:
            yield self._broadcast(inp if src_index == self.index else out, src_index)

    def start_barrier(self, name: str) -> Operation:
        return self._start("barrier", partial(self._meet, name), None, None, repr(name))

    def _meet(self, name: str, _out: Tensor, _inp: Tensor) -> Rounds:
        if self.size > 1:
            yield self._barrier(name)

    # ---- point to point ----------------------------------------------------------------------------------------

    def start_send(self, x: Tensor, dst_index: int, tag: int = 0) -> Operation:
        check.movable(self, "send", x)
        check.peer(self, "send", "dst_index", dst_index)

        def rounds(_: Tensor, inp: Tensor) -> Rounds:
            yield self._send(inp, dst_index, tag)

        return self._start("send", rounds, None, x, f"{check.describe(x)}, tag {tag}", peer=dst_index)

    def start_recv(self, x: Tensor, src_index: int, tag: int = 0) -> Operation:
        check.writable(self, "recv", x)
        check.peer(self, "recv", "src_index", src_index)

        def rounds(out: Tensor, _: Tensor) -> Rounds:
            yield self._recv(out, src_index, tag)

        return self._start("recv", rounds, x, None, f"{check.describe(x)}, tag {tag}", peer=src_index)

    # ---- the one way in ----------------------------------------------------------------------------------------

    def _start(
        self, kind: str, rounds: RoundsOf, out: Tensor | None, inp: Tensor | None, detail: str, peer: int | None = None
    ) -> Operation:
        """Number the call, lend its buffers to comm, post its first round."""
        loan = self._lend(out, inp, reads_out=kind == "all_reduce")
        op = self.operation_type(self, kind, rounds(loan.out, loan.inp), loan, detail, peer)
        if peer is None:
            self.entered += 1
            op.number = self.entered
        else:
            counts = self.sent if kind == "send" else self.received
            counts[peer] += 1
            op.number = counts[peer]
        self.progress.run()
        op.post()
        return op

    def _call(self, start: Callable[..., Operation], *args: Any) -> None:
        """A blocking call: nobody touches the buffers between the two halves."""
        start(*args).wait()

    def all_reduce(self, x: Tensor, op: ReduceOp = SUM) -> None:
        self._call(self.start_all_reduce, x, op)

    def all_gather(self, out: Tensor, shard: Tensor) -> None:
        self._call(self.start_all_gather, out, shard)

    def reduce_scatter(self, out: Tensor, full: Tensor, op: ReduceOp = SUM) -> None:
        self._call(self.start_reduce_scatter, out, full, op)

    def all_to_all(
        self, out: Tensor, inp: Tensor, out_splits: list[int] | None = None, in_splits: list[int] | None = None
    ) -> None:
        self._call(self.start_all_to_all, out, inp, out_splits, in_splits)

    def broadcast(self, x: Tensor, src_index: int) -> None:
        self._call(self.start_broadcast, x, src_index)

    def send(self, x: Tensor, dst_index: int, tag: int = 0) -> None:
        self._call(self.start_send, x, dst_index, tag)

    def recv(self, x: Tensor, src_index: int, tag: int = 0) -> None:
        self._call(self.start_recv, x, src_index, tag)

    def barrier(self, name: str) -> None:
        self._call(self.start_barrier, name)
