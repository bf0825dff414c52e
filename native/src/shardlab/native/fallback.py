"""The kernels in plain torch operations: the reference for the compiled ones, and what runs where nothing is compiled.

Casts, sums and AdamW give the same bits as the compiled kernels, apart from the payload of a NaN in fp32 and fp64. Each
operation is written out, because the fused operations of torch (lerp, addcmul, addcdiv) round once or twice depending
on the CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["AdamWNumbers", "adamw", "adamw_numbers", "cast", "sum_ranks"]

_QUIET_NAN_BITS = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


@dataclass(frozen=True, slots=True)
class AdamWNumbers:
    """The scalars of one AdamW step, computed in double precision as torch.optim does; see include/shardlab/adamw.h."""

    beta2: float
    one_minus_beta1: float
    one_minus_beta2: float
    eps: float
    step_size: float
    sqrt_bias_correction2: float
    decay: float
    l2: float


def adamw_numbers(
    step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool
) -> AdamWNumbers:
    """Derive the scalars of one step from the hyperparameters.

    Args:
        step: number of this step, counted from 1.
        lr: learning rate.
        betas: decay rates of the first and second moment.
        eps: added to the denominator.
        weight_decay: strength of the decay.
        decoupled: True for AdamW's decay, False for Adam's L2 term.

    Returns:
        The scalars that all kernels take.
    """
    beta1, beta2 = betas
    return AdamWNumbers(
        beta2=beta2,
        one_minus_beta1=1 - beta1,
        one_minus_beta2=1 - beta2,
        eps=eps,
        step_size=lr / (1 - beta1**step),
        sqrt_bias_correction2=math.sqrt(1 - beta2**step),
        decay=1 - lr * weight_decay if decoupled else 1.0,
        l2=0.0 if decoupled else weight_decay,
    )


def cast(x: Tensor, out: Tensor) -> None:
    """Round x to the dtype of out, to nearest even; a NaN stays a NaN, the canonical one when narrowing.

    Args:
        x: source.
        out: target, same shape.
    """
    out.copy_(x)
    bits = _QUIET_NAN_BITS.get(out.dtype)
    if bits is not None and x.dtype is not out.dtype:
        out.view(torch.int16).masked_fill_(torch.isnan(x), bits)


def sum_ranks(chunks: Sequence[Tensor], out: Tensor) -> None:
    """Add the chunks in the order given, in fp32 (fp64 in fp64), and round once.

    Args:
        chunks: 1-D, one per rank, same dtype and size.
        out: 1-D, same dtype and size; may be one of the chunks.

    Cost: one fp32 copy of a chunk, and another for 16-bit dtypes.
    """
    wide = torch.float64 if out.dtype is torch.float64 else torch.float32
    total = chunks[0].to(wide, copy=True)
    for chunk in chunks[1:]:
        total.add_(chunk.to(wide))
    cast(total, out)


def adamw(p: Tensor, m: Tensor, v: Tensor, grad: Tensor, numbers: AdamWNumbers, copy: Tensor | None) -> None:
    """Do one AdamW step in place.

    Args:
        p: fp32 master parameters.
        m: fp32 first moment.
        v: fp32 second moment.
        grad: fp32, bf16 or fp16 gradient.
        numbers: scalars of this step.
        copy: bf16 or fp16, receives the rounded new p.

    Cost: temporaries of up to 12 bytes an element.
    """
    p.mul_(numbers.decay)
    wide = grad.to(torch.float32)
    if numbers.l2 != 0.0:
        wide = wide + p.mul(numbers.l2)
    m.add_(wide.sub(m).mul_(numbers.one_minus_beta1))
    v.mul_(numbers.beta2).add_(wide.mul(numbers.one_minus_beta2).mul_(wide))
    # torch's fp32 square root on the CPU is not always the nearest fp32 number; an fp64 root rounded to fp32 always is.
    denominator = v.to(torch.float64).sqrt_().to(torch.float32).div_(numbers.sqrt_bias_correction2).add_(numbers.eps)
    p.sub_(m.mul(numbers.step_size).div_(denominator))
    if copy is not None:
        cast(p, copy)
