"""What the contract's functions share: inputs, expected results, and checks that work outside pytest.

Inputs are drawn from (index, salt), so that each rank knows what all others contribute and computes the expected result
by itself, with a loop that shares no code with shardlab.comm.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shardlab.comm import MAX, MIN, SUM, Communicator, ReduceOp

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
REDUCED = (*FLOATS, *INTEGERS)
MOVED = (*REDUCED, torch.bool)
NUMELS = (0, 1, 7, 5003)  # the last one reaches the fused kernel, where it is built

Kind = str  # "blocking" or "start"
HOW: tuple[Kind, ...] = ("blocking", "start")


def draw(index: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """The values that an index contributes; sums of floats need rounding, sums of integers wrap."""
    rng = torch.Generator().manual_seed(7919 * salt + index + 1)
    if dtype is torch.bool:
        return torch.rand(shape, generator=rng) < 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=rng, dtype=torch.float64) * 3).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), shape, generator=rng).to(dtype)


def summed(parts: list[Tensor], op: ReduceOp = SUM) -> Tensor:
    """One process: contributions in rank order, 16-bit floats in fp32 and rounded once."""
    wide = torch.float32 if parts[0].dtype in (torch.bfloat16, torch.float16) else parts[0].dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        part = part.to(wide)
        total = {SUM: torch.add, MAX: torch.maximum, MIN: torch.minimum}[op](total, part)
    return total.to(parts[0].dtype)


def same(got: Tensor, want: Tensor, what: str) -> None:
    """Equal shape, dtype and bits."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{what}: got {got.dtype} {tuple(got.shape)}, want {want.dtype} {tuple(want.shape)}")
    bits = [torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()).reshape(-1).view(torch.uint8) for x in (got, want)]
    if not torch.equal(*bits):
        wrong = (bits[0] != bits[1]).nonzero().flatten().tolist()
        raise AssertionError(f"{what}: {len(wrong)} bytes differ, first at {wrong[:5]}; got {got}, want {want}")


def check(condition: bool, what: object) -> None:
    """An assert that shows ``what`` without pytest's help."""
    if not condition:
        raise AssertionError(str(what))


def call(comm: Communicator, how: Kind, kind: str, *args: Any) -> None:
    """Make a call in its blocking or in its start_ form."""
    if how == "blocking":
        getattr(comm, kind)(*args)
    else:
        getattr(comm, f"start_{kind}")(*args).wait()


def strided(x: Tensor) -> Tensor:
    """The same values in memory that is not contiguous."""
    holder = x.new_zeros((*x.shape, 2))
    holder[..., 0] = x
    view = holder[..., 0]
    check(x.numel() < 2 or not view.is_contiguous(), "the view should not be contiguous")
    return view


@contextmanager
def raises(kind: type[Exception], *words: str) -> Iterator[list[str]]:
    """The block raises ``kind`` with all ``words`` in its text; yields a list that gets the text."""
    text: list[str] = []
    try:
        yield text
    except kind as error:
        text.append(str(error))
        missing = [word for word in words if word not in str(error)]
        check(not missing, f"{missing} not in {error}")
    else:
        raise AssertionError(f"no {kind.__name__}")
