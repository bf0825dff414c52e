"""Ranks must start from the same weights; a digest of each parameter is compared before anything is sharded."""

import torch
from torch import Tensor, nn

from shardlab.comm.communicator import Communicator
from shardlab.comm.values import has_values, host_list

__all__ = ["check_same_start", "digest"]

_CHUNK = 1 << 18  # words; bounds the temporaries to a few MiB
_ODD = -7046029254386353131  # the 64-bit golden ratio: spreads positions over all bits


def digest(x: Tensor) -> Tensor:
    """A 64-bit digest of the bytes of ``x``, as an int64 scalar; order matters. Cost: one pass over ``x``."""
    if not has_values(x):  # a dry run of 70 B parameters would spend most of its time here
        return torch.zeros((), dtype=torch.int64)
    raw = x.detach().contiguous().reshape(-1).view(torch.uint8)
    pad = -raw.numel() % 8
    words = torch.nn.functional.pad(raw, (0, pad)).view(torch.int64)
    total = torch.zeros((), dtype=torch.int64)
    for at, chunk in enumerate(words.split(_CHUNK)):  # type: ignore[no-untyped-call]
        weights = torch.arange(at * _CHUNK, at * _CHUNK + chunk.numel()).mul_(_ODD).bitwise_or_(1)
        total += (chunk * weights).sum()
    return total


def check_same_start(model: nn.Module, comms: list[Communicator]) -> None:
    """Raise unless every parameter has the same bytes on every rank of each group.

    Raises:
        ValueError: names the first parameter that differs and the ranks.

    Cost: one pass over the weights, one all-gather of 8 bytes a parameter as a control message.
    """
    named = list(model.named_parameters())
    if not named:
        return
    mine = torch.stack([digest(p) for _, p in named])
    for comm in comms:
        if comm.size == 1:
            continue
        everyone = torch.empty(comm.size, len(named), dtype=torch.int64)
        with comm.recorder.labelled(control=True):
            comm.all_gather(everyone, mine)
        same = (everyone == everyone[0]).all(0)
        for (name, _), equal, column in zip(named, host_list(same, [True] * len(named)), everyone.T, strict=True):
            if not equal:
                odd = [comm.ranks[i] for i in range(comm.size) if column[i] != column[0]]
                raise ValueError(
                    f"parameter {name!r} has other initial values on rank {odd[0]} than on rank "
                    f"{comm.ranks[0]}: give every "
                    "rank the same seed before the model is made, or broadcast the weights first"
                )
