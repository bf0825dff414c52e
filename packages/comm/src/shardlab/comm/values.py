"""Numbers of tensors that may hold none."""

from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["host_list", "has_values", "host_value"]


def has_values(tensor: Tensor) -> bool:
    """True unless ``tensor`` is fake or on the meta device."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def host_value(tensor: Tensor, default: bool | int | float) -> bool | int | float:
    """Read one number of a tensor; a dry run, whose tensors hold no values, gets ``default``."""
    return tensor.item() if has_values(tensor) else default


def host_list(tensor: Tensor, default: list[Any]) -> list[Any]:
    """Read all numbers of a tensor as nested lists; a dry run gets ``default``."""
    return list(tensor.tolist()) if has_values(tensor) else default
