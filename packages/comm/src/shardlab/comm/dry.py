"""Stand-ins where no values exist. Only host_value so far; the dry world is added beside it."""

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["has_values", "host_value"]


def has_values(tensor: Tensor) -> bool:
    """True unless ``tensor`` is fake or on the meta device."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def host_value(tensor: Tensor, default: bool | int | float) -> bool | int | float:
    """Read one number of a tensor; a dry run, whose tensors hold no values, gets ``default``."""
    return tensor.item() if has_values(tensor) else default
