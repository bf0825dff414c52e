"""Say what autocast costs at stage 3: autograd keeps the cast copy of every weight, which no free gives back."""

import warnings

import torch

from shardlab.zero.unit import Unit

__all__ = ["AutocastNotice"]


class AutocastNotice:
    """Warns once per model.

    Args:
        units: all units, of which the cast copies would be.
    """

    def __init__(self, units: list[Unit]) -> None:
        self.units, self.given = units, False

    def before_forward(self) -> None:
        """Warn if this forward runs under autocast and none has before."""
        if self.given or not self.units:
            return
        device = self.units[0].groups[0].shard.device.type
        if not torch.is_autocast_enabled(device):
            return
        self.given = True
        to = torch.get_autocast_dtype(device)
        cast_bytes = sum(
            member.numel * to.itemsize
            for unit in self.units
            for group in unit.groups
            if group.dtypes.compute not in (to, torch.float64) and group.dtypes.compute.is_floating_point
            for member in group.members
        )
        if cast_bytes:
            warnings.warn(
                f"autocast at stage 3: autograd keeps a {to} copy of every weight that is cast, up to {cast_bytes} "
                'bytes on this rank until backward. Precision(compute="bf16") computes in bf16 without copies',
                stacklevel=2,
            )
