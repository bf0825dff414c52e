"""Rank-ordered reduction: the one place where contributions become a result.

MPI's own all-reduce and reduce-scatter add in different orders from 4 ranks on, so equal programs give different bits.
Here contributions are combined in the order of their index: fp32 and fp64 in their own type, bf16 and fp16 widened to
fp32 and rounded once at the end, integers in their own type (they wrap, as torch's do).
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardlab.comm.communicator import ReduceOp

__all__ = ["combine", "split_evenly"]

_HALF = (torch.bfloat16, torch.float16)
_NATIVE = (*_HALF, torch.float32, torch.float64)
_MIN_NATIVE = 4096  # elements from which the fused kernel's argument checks are paid back
_STEP: dict[ReduceOp, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
}


def combine(chunks: Sequence[Tensor], out: Tensor, op: ReduceOp) -> None:
    """Combine ``chunks`` in the order given into ``out``.

    Args:
        chunks: one per index, each 1-D, contiguous, of the numel and dtype of ``out``.
        out: 1-D; may be one of ``chunks``.

    Cost: one temporary of the size of ``out`` (fp32 for half types) without the native kernel, none with it.
    """
    if op is ReduceOp.SUM and out.is_floating_point() and _native_sum(chunks, out):
        return
    with torch.no_grad():
        widen = out.dtype in _HALF and op is ReduceOp.SUM
        total = chunks[0].float() if widen else chunks[0]
        for chunk in chunks[1:]:
            total = _STEP[op](total, chunk.float() if widen else chunk)
        out.copy_(total)


def split_evenly(numel: int, parts: int) -> list[int]:
    """Sizes of ``parts`` pieces that cover ``numel`` elements; the first ``numel % parts`` hold one more."""
    base, more = divmod(numel, parts)
    return [base + (i < more) for i in range(parts)]


@functools.cache
def _kernel() -> Callable[[Sequence[Tensor], Tensor], None] | None:
    """The fused kernel of shardlab.native where it is installed and built; same bits as the loop above."""
    try:
        from shardlab import native
    except ImportError:
        return None
    return native.sum_ranks if native.build_info().core else None


def _native_sum(chunks: Sequence[Tensor], out: Tensor) -> bool:
    if type(out) is not Tensor or out.device.type != "cpu" or out.dtype not in _NATIVE or out.numel() < _MIN_NATIVE:
        return False
    kernel = _kernel()
    if kernel is None:
        return False
    kernel(chunks, out)
    return True
