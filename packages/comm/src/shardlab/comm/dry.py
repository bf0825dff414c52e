"""Stand-ins where no values exist. Only host_value so far; the dry world is added beside it."""

from torch import Tensor

__all__ = ["host_value"]


def host_value(tensor: Tensor, default: bool | int | float) -> bool | int | float:
    """Read one number of a tensor; a dry run, whose tensors hold no values, gets ``default``."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return default
    return tensor.item()
