"""Argument checks of the kernels: they work on addresses, so what is wrong must be found here, by name."""

import torch
from torch import Tensor

__all__ = ["check_same_place", "check_tensor", "check_untangled"]


def check_tensor(name: str, x: Tensor, dtypes: tuple[torch.dtype, ...], shape: torch.Size | None = None) -> None:
    """Check one tensor by itself.

    Args:
        name: argument name for the message.
        x: the tensor.
        dtypes: what is allowed.
        shape: shape that it must have; None for any.

    Raises:
        TypeError: not a tensor.
        ValueError: dtype, shape, layout or device that a kernel cannot work on.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a torch.Tensor")
    if x.dtype not in dtypes:
        allowed = " or ".join(_short(one) for one in dtypes)
        raise ValueError(f"{name} has dtype {_short(x.dtype)}; it must be {allowed}")
    if x.layout is not torch.strided or not x.is_contiguous():
        raise ValueError(f"{name} is not contiguous (shape {tuple(x.shape)}); pass {name}.contiguous()")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {tuple(shape)}")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {x.device}; it must be on the CPU or a CUDA device")


def check_same_place(**tensors: Tensor) -> None:
    """Check that all tensors are on one device.

    Args:
        tensors: by argument name; the first sets the device.

    Raises:
        ValueError: names the first tensor that is elsewhere.
    """
    (first_name, first), *others = tensors.items()
    for name, x in others:
        if x.device != first.device:
            raise ValueError(f"{name} is on {x.device} and {first_name} on {first.device}; they must be on one device")


def check_untangled(name: str, x: Tensor, other_name: str, other: Tensor, *, same_allowed: bool = False) -> None:
    """Check that two contiguous tensors share no memory.

    Args:
        name: of the first, for the message.
        x: first tensor.
        other_name: of the second.
        other: second tensor.
        same_allowed: whether both may be the very same memory.

    Raises:
        ValueError: they overlap.
    """
    begin, other_begin = x.data_ptr(), other.data_ptr()
    end, other_end = begin + x.nbytes, other_begin + other.nbytes
    if begin >= other_end or other_begin >= end or (same_allowed and (begin, end) == (other_begin, other_end)):
        return
    raise ValueError(f"{name} and {other_name} overlap in memory; the kernel would read what it has already written")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
