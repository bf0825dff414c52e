"""The public kernels: check the arguments, then take the compiled kernel for the tensors' device or the fallback.

Compiled kernels get addresses and sizes; torch's headers are not used, so one build serves every version of torch.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardlab.native import fallback
from shardlab.native.check import check_same_place, check_tensor, check_untangled

if TYPE_CHECKING:
    from shardlab.native import _core, _cuda
else:
    try:
        from shardlab.native import _core
    except ImportError:  # build_info() has the reason
        _core = None
    try:
        from shardlab.native import _cuda
    except ImportError:
        _cuda = None

__all__ = ["adamw", "cast", "sum_ranks"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_HALVES = (torch.bfloat16, torch.float16)
# The numbers of DType in include/shardlab/kernels.h.
_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
_NO_DTYPE = -1
_MAX_CUDA_RANKS = 256  # pointers that are passed by value to the CUDA kernel


def sum_ranks(chunks: Tensor | Sequence[Tensor], out: Tensor, *, threads: int | None = None) -> None:
    """Add the ranks' chunks in rank order in fp32 (fp64 in fp64) and round once: bits that depend on nothing else.

    Args:
        chunks: (size, n) contiguous, or `size` 1-D tensors of n elements; fp32, fp64, bf16 or fp16.
        out: (n,), same dtype; may be one of the chunks.
        threads: CPU threads; None takes torch.get_num_threads().

    Raises:
        ValueError: names the argument with the wrong dtype, shape, layout, device or memory.
    """
    rows = list(chunks.unbind(0)) if isinstance(chunks, Tensor) and chunks.ndim == 2 else list(chunks)
    if not rows:
        raise ValueError("chunks is empty; there must be at least one rank")
    check_tensor("out", out, tuple(_CODES))
    if out.ndim != 1:
        raise ValueError(f"out has shape {tuple(out.shape)}; it must be 1-D")
    for rank, row in enumerate(rows):
        check_tensor(f"chunks[{rank}]", row, (out.dtype,), out.shape)
        check_same_place(**{"out": out, f"chunks[{rank}]": row})
        check_untangled("out", out, f"chunks[{rank}]", row, same_allowed=True)
    if out.numel() == 0:
        return
    code = _CODES[out.dtype]
    addresses = [row.data_ptr() for row in rows]
    if out.is_cuda and _cuda is not None and len(rows) <= _MAX_CUDA_RANKS:
        _cuda.sum_ranks(code, addresses, out.data_ptr(), out.numel(), *_place(out))
    elif not out.is_cuda and _core is not None:
        _core.sum_ranks(code, addresses, out.data_ptr(), out.numel(), _threads(threads))
    else:
        with torch.no_grad():
            fallback.sum_ranks(rows, out)
        return
    torch.autograd.graph.increment_version(out)


def cast(x: Tensor, out: Tensor, *, threads: int | None = None) -> None:
    """Convert between fp32 and bf16 or fp16: round to nearest even, NaN kept.

    Args:
        x: fp32, bf16 or fp16, contiguous.
        out: same shape, fp32 if x is bf16 or fp16, else bf16 or fp16.
        threads: CPU threads; None takes torch.get_num_threads().

    Raises:
        ValueError: names the argument with the wrong dtype, shape, layout, device or memory.
    """
    check_tensor("x", x, _FLOATS)
    check_tensor("out", out, _HALVES if x.dtype is torch.float32 else (torch.float32,), x.shape)
    check_same_place(x=x, out=out)
    check_untangled("out", out, "x", x)
    if x.numel() == 0:
        return
    numbers = (_CODES[x.dtype], x.data_ptr(), _CODES[out.dtype], out.data_ptr(), x.numel())
    if x.is_cuda and _cuda is not None:
        _cuda.cast(*numbers, *_place(x))
    elif not x.is_cuda and _core is not None:
        _core.cast(*numbers, _threads(threads))
    else:
        with torch.no_grad():
            fallback.cast(x, out)
        return
    torch.autograd.graph.increment_version(out)


def adamw(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    decoupled: bool = True,
    copy: Tensor | None = None,
    threads: int | None = None,
) -> None:
    """Do one step of AdamW (or of Adam with L2 decay) in place, in one pass over memory.

    Args:
        p: fp32 master parameters, any shape, contiguous.
        m: fp32 first moment, same shape.
        v: fp32 second moment, same shape.
        grad: gradient, fp32, bf16 or fp16, same shape.
        step: number of this step, counted from 1; sets the bias correction.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: added to the denominator.
        weight_decay: strength of the decay.
        decoupled: True multiplies p by 1 - lr * weight_decay (AdamW); False adds weight_decay * p to grad (Adam).
        copy: bf16 or fp16, same shape; receives the new p, rounded to nearest even, in the same pass.
        threads: CPU threads; None takes torch.get_num_threads().

    Raises:
        ValueError: names the argument that is wrong.

    Source: Kingma and Ba, 2015, algorithm 1; Loshchilov and Hutter, 2019, algorithm 2.
    """
    tensors = _check_adamw(p, m, v, grad, copy)
    if step < 1:
        raise ValueError(f"step is {step}; steps are counted from 1")
    if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1):
        raise ValueError(f"betas is {betas}; both must be in [0, 1)")
    if p.numel() == 0:
        return
    numbers = fallback.adamw_numbers(step, lr, betas, eps, weight_decay, decoupled)
    moments = (p.data_ptr(), m.data_ptr(), v.data_ptr())
    halves = (_NO_DTYPE, 0) if copy is None else (_CODES[copy.dtype], copy.data_ptr())
    source = (_CODES[grad.dtype], grad.data_ptr())
    if p.is_cuda and _cuda is not None:
        _cuda.adamw(*moments, *source, *halves, p.numel(), _cuda.AdamWStep(**asdict(numbers)), *_place(p))
    elif not p.is_cuda and _core is not None:
        _core.adamw(*moments, *source, *halves, p.numel(), _core.AdamWStep(**asdict(numbers)), _threads(threads))
    else:
        with torch.no_grad():
            fallback.adamw(p, m, v, grad, numbers, copy)
        return
    torch.autograd.graph.increment_version([x for name, x in tensors.items() if name != "grad"])


def _check_adamw(p: Tensor, m: Tensor, v: Tensor, grad: Tensor, copy: Tensor | None) -> dict[str, Tensor]:
    check_tensor("p", p, (torch.float32,))
    check_tensor("m", m, (torch.float32,), p.shape)
    check_tensor("v", v, (torch.float32,), p.shape)
    check_tensor("grad", grad, _FLOATS, p.shape)
    tensors = {"p": p, "m": m, "v": v, "grad": grad}
    if copy is not None:
        check_tensor("copy", copy, _HALVES, p.shape)
        tensors["copy"] = copy
    check_same_place(**tensors)
    names = list(tensors)
    for position, name in enumerate(names):
        for other in names[:position]:
            check_untangled(name, tensors[name], other, tensors[other])
    return tensors


def _threads(threads: int | None) -> int:
    return torch.get_num_threads() if threads is None else threads


def _place(x: Tensor) -> tuple[int, int]:
    """Device index and address of the current CUDA stream, on which the kernel is queued."""
    return x.get_device(), torch.cuda.current_stream(x.device).cuda_stream
