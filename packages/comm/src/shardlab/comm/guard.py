"""Ranks agree on what they are about to do, before they do it: 32 bytes compared over the group.

Without this, ranks whose models take different branches mix the bytes of different units or wait for ever.
"""

import hashlib

import torch

from shardlab.comm.communicator import Communicator
from shardlab.comm.errors import DivergedError
from shardlab.comm.values import host_value

__all__ = ["agree"]


def agree(comm: Communicator, op: str, name: str, count: int) -> None:
    """Raise on every rank of the group unless all are about to do the same.

    Args:
        op: what comes next, such as "gather".
        name: on what, such as the name of a unit.
        count: how many elements it moves.

    Raises:
        DivergedError: names what this rank and the first rank that differs are about to do.

    Cost: one all-gather of 32 bytes a rank, as a control message.
    """
    if comm.size == 1:
        return
    mine = torch.tensor([_digest(op), _digest(name), count, len(name)], dtype=torch.int64)
    everyone = torch.empty(comm.size, 4, dtype=torch.int64)
    with comm.recorder.labelled(control=True):
        comm.all_gather(everyone, mine)
    if host_value((everyone == mine).all(), True):
        return
    texts = _exchange_texts(comm, f"{op} {name!r} ({count} elements)")
    said = "; ".join(f"rank {rank}: {text}" for rank, text in zip(comm.ranks, texts, strict=True))
    raise DivergedError(
        f"ranks of {comm} diverge. About to do: {said}. Every rank must run the same modules in the same order"
    )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def _exchange_texts(comm: Communicator, text: str) -> list[str]:
    """Gather a line of at most 256 bytes from every rank."""
    line = text.encode()[:256].ljust(256)
    mine = torch.frombuffer(bytearray(line), dtype=torch.uint8)
    everyone = torch.empty(comm.size, 256, dtype=torch.uint8)
    with comm.recorder.labelled(control=True):
        comm.all_gather(everyone, mine)
    return [bytes(row.tolist()).decode(errors="replace").strip() for row in everyone]
