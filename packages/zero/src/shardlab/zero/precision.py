"""Which dtype holds what: the weights that compute, the gradients on the wire, their sum, the weights that learn."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from shardlab.plan.dtypes import dtype_name, is_floating

__all__ = ["Dtypes", "Precision", "dtypes_of", "torch_dtype"]

_TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a short name; raises ValueError that lists the valid ones."""
    short = dtype_name(name)
    if short not in _TORCH:
        raise ValueError(f"dtype {name!r} is not one to train in; valid are {', '.join(_TORCH)}")
    return _TORCH[short]


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of one flat group."""

    compute: torch.dtype
    reduce: torch.dtype
    accumulate: torch.dtype
    master: torch.dtype


@dataclass(frozen=True)
class Precision:
    """Mixed precision of a sharded model.

    bf16 weights need fp32 master weights to learn: near 1.0 a bf16 step is 0.0078, so an update of 0.001 is rounded
    away.

    Args:
        compute: dtype of the weights in forward and backward; None keeps the dtype of each parameter. Floating inputs
            of the model are cast to it; buffers keep theirs, and so do norms with running statistics.
        reduce: dtype of gradients on the wire. Sums are taken in fp32 whatever it is, and rounded once.
        accumulate: dtype in which micro-batches are added up.
        master: dtype of the weights that the optimizer updates; a copy beside the compute weights when it differs.
        loss_scale: not built yet; anything but None is refused.
        non_finite: what to do at the optimizer step when a gradient holds inf or NaN on any rank: "skip" the step on
            all ranks with a warning, "raise" on all ranks, or "ignore" (the update then spreads it). Both checks name
            the first parameter.
    """

    compute: str | None = None
    reduce: str = "fp32"
    accumulate: str = "fp32"
    master: str = "fp32"
    loss_scale: float | Literal["dynamic"] | None = None
    non_finite: Literal["skip", "raise", "ignore"] = "skip"

    def __post_init__(self) -> None:
        for key in ("compute", "reduce", "accumulate", "master"):
            value = getattr(self, key)
            if value is not None:
                torch_dtype(value)
        if self.loss_scale is not None:
            raise ValueError(f"precision.loss_scale is {self.loss_scale!r}: loss scaling is not built yet, use bf16")
        if self.non_finite not in ("skip", "raise", "ignore"):
            raise ValueError(f"precision.non_finite is {self.non_finite!r}, valid are 'skip', 'raise', 'ignore'")

    def of(self, dtype: torch.dtype) -> Dtypes:
        """The dtypes of parameters that the model holds in ``dtype``."""
        if not is_floating(dtype_name(dtype)):
            return Dtypes(dtype, dtype, dtype, dtype)
        compute = dtype if self.compute is None else torch_dtype(self.compute)
        if self.compute is None and dtype is torch.float64:
            return own_dtypes(dtype)
        return Dtypes(compute, torch_dtype(self.reduce), torch_dtype(self.accumulate), torch_dtype(self.master))


def own_dtypes(dtype: torch.dtype) -> Dtypes:
    """Plain PyTorch: everything in the dtype of the parameter."""
    return Dtypes(dtype, dtype, dtype, dtype)


def dtypes_of(model: nn.Module, precision: Precision | None) -> dict[nn.Parameter, Dtypes]:
    """The dtypes of each parameter of ``model``.

    Norms with running statistics compute in the dtype of those buffers, which stay as they are: torch refuses bf16
    weights beside fp32 statistics, and bf16 statistics would be wrong.
    """
    if precision is None:
        return {p: own_dtypes(p.dtype) for p in model.parameters()}
    found = {p: precision.of(p.dtype) for p in model.parameters()}
    for module in model.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            found |= {p: replace(precision, compute=None).of(p.dtype) for p in module.parameters()}
    return found
