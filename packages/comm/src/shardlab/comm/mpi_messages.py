"""Messages and requests of MPI over the memory of tensors.

A tensor is handed over as an address and a 64-bit byte count, so that every dtype passes and more than 2^31 bytes do. A
request holds the tensors that MPI reads or writes until the call has ended.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from mpi4py import MPI
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.errors import DivergedError
from shardlab.comm.verdict import Need

__all__ = ["Message", "MpiRequest", "Receipt", "Roll", "nbytes", "vector", "whole"]

_NAME_BYTES = 128  # of a barrier: 16 of digest, the rest the beginning of its name

Message = list[object]  # what mpi4py takes: memory, counts, displacements, datatype


def nbytes(x: Tensor) -> int:
    """Bytes of the elements of ``x``."""
    return x.numel() * x.element_size()


def whole(x: Tensor) -> Message:
    """All of a contiguous tensor as a message."""
    return [MPI.buffer.fromaddress(x.data_ptr(), nbytes(x)), nbytes(x), MPI.BYTE]


def vector(parts: Sequence[Tensor], skip: int | None) -> tuple[Message, list[int]]:
    """Blocks of one allocation as a message of byte counts and displacements, and these counts."""
    counts = [0 if i == skip else nbytes(part) for i, part in enumerate(parts)]
    starts = [part.data_ptr() if count else 0 for part, count in zip(parts, counts, strict=True)]
    base = min((start for start in starts if start), default=0)
    end = max(start + count for start, count in zip(starts, counts, strict=True))
    memory = MPI.buffer.fromaddress(base, end - base)
    return [memory, counts, [start - base if start else 0 for start in starts], MPI.BYTE], counts


class MpiRequest:
    """A nonblocking MPI call.

    Args:
        request: of MPI.
        posted: (index, bytes) of what this rank posts to others.
        needs: what others must have entered for the call to end.
        memory: tensors that MPI reads or writes; held until the call has ended.
    """

    def __init__(
        self, request: MPI.Request, posted: list[tuple[int, int]], needs: list[Need], memory: Sequence[Tensor]
    ) -> None:
        self.request, self.posted, self.needs, self.memory = request, posted, needs, memory

    def test(self) -> bool:
        try:
            return self.request.Test()
        except MPI.Exception as error:
            raise DivergedError(f"MPI refused: {error}. Ranks of the group passed different sizes") from error


class Receipt(MpiRequest):
    """A receive that checks how much arrived: MPI takes a shorter message without a word."""

    def test(self) -> bool:
        status = MPI.Status()
        try:
            if not self.request.Test(status):
                return False
        except MPI.Exception as error:
            raise DivergedError(f"recv: more bytes were sent than {nbytes(self.memory[0])} ({error})") from error
        got, want = status.Get_count(MPI.BYTE), nbytes(self.memory[0])
        if got != want:
            raise DivergedError(f"recv: {got} bytes arrived, the tensor has {want}; both sides must pass the same size")
        return True


class Roll(MpiRequest):
    """A barrier that gathers what every rank calls it."""

    def __init__(self, comm: BaseCommunicator, channel: MPI.Intracomm, name: str, needs: list[Need]) -> None:
        text = name.encode()
        line = blake2b(text, digest_size=16).digest() + text[: _NAME_BYTES - 16].ljust(_NAME_BYTES - 16, b"\0")
        self.comm, self.names = comm, torch.zeros(comm.size, _NAME_BYTES, dtype=torch.uint8)
        self.names[comm.index] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        block = [*whole(self.names)[:1], _NAME_BYTES, MPI.BYTE]
        request = channel.Iallgather(MPI.IN_PLACE, block)
        super().__init__(request, [], needs, [self.names])  # a barrier counts as no bytes

    def test(self) -> bool:
        if not super().test():
            return False
        said = [bytes(row.tolist()) for row in self.names]
        if any(name != said[self.comm.index] for name in said):
            words = [name[16:].rstrip(b"\0").decode(errors="replace") for name in said]
            each = "; ".join(f"rank {rank}: {word!r}" for rank, word in zip(self.comm.ranks, words, strict=True))
            raise DivergedError(f"ranks of {self.comm} are at different barriers: {each}")
        return True
