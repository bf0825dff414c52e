"""The batch-size triple: train = micro-batch x accumulation x data-parallel ranks.

Any two of the three settings give the third; one alone leaves accumulation at 1. The names are the keys of DeepSpeed's
configuration, since its users know them.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True)
class BatchTriple:
    """A solved triple.

    Args:
        train: Samples per step over all ranks.
        micro: Samples per rank and backward pass.
        accumulation: Backward passes per step.
    """

    train: int
    micro: int
    accumulation: int


def solve_batch(train: int | None, micro: int | None, accumulation: int | None, dp: int) -> BatchTriple:
    """Fill in what is not given.

    Args:
        train: Samples per step, or None.
        micro: Samples per rank and backward pass, or None.
        accumulation: Backward passes per step, or None.
        dp: Data-parallel ranks.

    Raises:
        ValueError: If the settings contradict each other, do not divide, or do not suffice; names keys and numbers.
    """
    for key, value in ((TRAIN, train), (MICRO, micro), (ACCUMULATION, accumulation)):
        if value is not None and value < 1:
            raise ValueError(f"{key} is {value}; want a whole number of at least 1")
    if train is None and micro is None:
        raise ValueError(f"give {TRAIN} or {MICRO}: with neither, and {ACCUMULATION} alone, the batch is not defined")
    if train is None:
        assert micro is not None
        return BatchTriple(micro * (accumulation or 1) * dp, micro, accumulation or 1)
    if micro is None:
        return BatchTriple(train, _divide(train, dp, accumulation or 1, ACCUMULATION), accumulation or 1)
    if accumulation is None:
        return BatchTriple(train, micro, _divide(train, dp, micro, MICRO))
    if train != micro * accumulation * dp:
        raise ValueError(
            f"{TRAIN} {train} is not {MICRO} {micro} x {ACCUMULATION} {accumulation} x {dp} ranks "
            f"({train} is not {micro} x {accumulation} x {dp} = {micro * accumulation * dp}); drop one of the three"
        )
    return BatchTriple(train, micro, accumulation)


def _divide(train: int, dp: int, other: int, key: str) -> int:
    whole = other * dp
    if train % whole:
        below, above = train // whole * whole, (train // whole + 1) * whole
        nearest = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"{TRAIN} {train} is not divisible by {key} {other} x {dp} ranks "
            f"({train} is not divisible by {other} x {dp} = {whole}); nearest: {nearest}"
        )
    return train // whole
