"""Message rounds of MPI over the memory of tensors, checked as they arrive.

A tensor is handed over as an address and a 64-bit byte count, so that every dtype passes and more than 2^31 bytes do.

A round of a collective is one message to and from each other member, of no bytes too. MPI's own nonblocking collectives
are as fast (benchmarks/collectives.py), but take a message of the wrong size, or one of another collective, without a
word. Here the tag of a message names the operation, and size and tag are compared on arrival:

    tag    kind of operation (3 bits) | digest of sizes, dtype, source and number (20 bits)
    match  by order: what index i sends k-th on a communicator is what is received k-th from i
"""

from collections.abc import Mapping
from hashlib import blake2b
from zlib import crc32

import torch
from mpi4py import MPI
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.errors import DivergedError
from shardlab.comm.operation import Operation
from shardlab.comm.verdict import Need

__all__ = ["BarrierRequest", "CollectiveRequest", "MpiRequest", "operation_tag"]

_KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier")
_DIGEST_BITS = 20
_NAME_BYTES = 128  # of a barrier: 16 of digest, the rest the beginning of its name


def operation_tag(op: Operation) -> int:
    """What a message says of the operation it belongs to; names of barriers travel inside the message."""
    agreed = "" if op.kind == "barrier" else op.detail
    return _KINDS.index(op.kind) << _DIGEST_BITS | crc32(f"{op.number} {agreed}".encode()) & (1 << _DIGEST_BITS) - 1


def _nbytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _whole(x: Tensor) -> list[object]:
    """A contiguous tensor the way mpi4py takes it: memory, count, datatype."""
    return [MPI.buffer.fromaddress(x.data_ptr(), _nbytes(x)), _nbytes(x), MPI.BYTE]


class MpiRequest:
    """Messages to and from other members of a group, all under way at once.

    Args:
        comm: the group.
        channel: its MPI communicator.
        incoming, outgoing: contiguous tensors by index of the other side; held until the round has ended.
        tag: of all messages.
        needs: what others must have entered for the round to end.
    """

    receive_tag: int | None = None  # None: that of the messages sent

    def __init__(
        self,
        comm: BaseCommunicator,
        channel: MPI.Intracomm,
        incoming: Mapping[int, Tensor],
        outgoing: Mapping[int, Tensor],
        tag: int,
        needs: list[Need],
    ) -> None:
        self.comm, self.tag, self.needs = comm, tag, needs
        self.posted = [(index, _nbytes(x)) for index, x in outgoing.items() if x.numel()]
        self.incoming, self.outgoing = list(incoming.items()), outgoing
        receive_tag = tag if self.receive_tag is None else self.receive_tag
        self._requests = [channel.Irecv(_whole(x), index, receive_tag) for index, x in self.incoming]
        self._requests += [channel.Isend(_whole(x), index, tag) for index, x in outgoing.items()]
        self._statuses = [MPI.Status() for _ in self._requests]

    def test(self) -> bool:
        """True once all messages have passed; raises DivergedError if one is not what was expected."""
        try:
            if not MPI.Request.Testall(self._requests, self._statuses):
                return False
        except MPI.Exception as error:  # a message was longer than the room for it
            self._check(failed=True)
            raise DivergedError(f"MPI refused: {error}") from error
        self._check(failed=False)
        return True

    def _check(self, failed: bool) -> None:
        for (index, x), status in zip(self.incoming, self._statuses, strict=False):
            error = status.Get_error() if failed else MPI.SUCCESS
            if error == MPI.ERR_PENDING:
                continue
            got, want = status.Get_count(MPI.BYTE), _nbytes(x)
            if error != MPI.SUCCESS or got != want or status.Get_tag() != self.tag:
                size = f"more than {want}" if error != MPI.SUCCESS else str(got)
                raise DivergedError(self.explain(self.comm.ranks[index], status.Get_tag(), size, want))

    def explain(self, rank: int, tag: int, got: str, want: int) -> str:
        """What is wrong with a message of ``rank``."""
        return f"{got} bytes arrived from rank {rank}, the tensor has {want}; both sides must pass the same size"


class CollectiveRequest(MpiRequest):
    """A round of a collective: takes whatever comes next from each member and compares what it belongs to."""

    receive_tag = MPI.ANY_TAG

    def explain(self, rank: int, tag: int, got: str, want: int) -> str:
        """Name the operation that the other rank is in."""
        mine, theirs = _KINDS[self.tag >> _DIGEST_BITS], _KINDS[tag >> _DIGEST_BITS]
        how = "" if mine != theirs else " with another size, dtype, source or number"
        return (
            f"rank {rank} is in {theirs}{how}; its message has {got} bytes, {want} are expected. "
            "Every rank must call the same collectives with the same sizes"
        )


class BarrierRequest(CollectiveRequest):
    """A barrier that gathers what every rank calls it."""

    def __init__(self, comm: BaseCommunicator, channel: MPI.Intracomm, name: str, tag: int, needs: list[Need]) -> None:
        text = name.encode()
        line = blake2b(text, digest_size=16).digest() + text[: _NAME_BYTES - 16].ljust(_NAME_BYTES - 16, b"\0")
        self.names = torch.zeros(comm.size, _NAME_BYTES, dtype=torch.uint8)
        self.names[comm.index] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        others = [index for index in range(comm.size) if index != comm.index]
        incoming = {index: self.names[index] for index in others}
        super().__init__(comm, channel, incoming, dict.fromkeys(others, self.names[comm.index]), tag, needs)
        self.posted = []  # names are no traffic of the program

    def test(self) -> bool:
        """True once all members are here; raises DivergedError if one is at another barrier."""
        if not super().test():
            return False
        said = [bytes(row.tolist()) for row in self.names]
        if any(name != said[self.comm.index] for name in said):
            words = [name[16:].rstrip(b"\0").decode(errors="replace") for name in said]
            each = "; ".join(f"rank {rank}: {word!r}" for rank, word in zip(self.comm.ranks, words, strict=True))
            raise DivergedError(f"ranks of {self.comm} are at different barriers: {each}")
        return True
