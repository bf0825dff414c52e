"""A way in for gradients that autograd's hooks do not see, such as those of a split backward."""

import torch
from torch import Tensor, nn

from shardlab.comm.protocols import GradSink
from shardlab.zero.sharding import Sharding, sharding_of

__all__ = ["grad_sink"]


class _Sink:
    """GradSink of a sharded model."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self._places = {m.param: (group, m) for group in sharding.trained_groups for m in group.members}
        self._open = False

    def add(self, param: nn.Parameter, grad: Tensor, micro_batch: int) -> None:
        """Add the local gradient of one parameter; shape of the parameter."""
        if param not in self._places:
            raise ValueError(f"grad_sink: a parameter of shape {tuple(param.shape)} is not a trained one of this model")
        group, member = self._places[param]
        if grad.shape != param.shape:
            raise ValueError(
                f"grad_sink: {member.name!r} has shape {tuple(param.shape)}, its gradient {tuple(grad.shape)}"
            )
        if not self._open:
            self._sharding.visible.hide()
            self._open = True
        self._sharding.reducer.micro_batch = micro_batch
        with torch.no_grad():
            self._sharding.reducer.take(group, member, grad)

    def end(self, micro_batch: int) -> None:
        """Reduce what was added for ``micro_batch``; every rank of the group calls it."""
        if not self._open:
            self._sharding.visible.hide()
        self._open = False
        self._sharding.reducer.micro_batch = micro_batch
        self._sharding.reducer.end()
        self._sharding.visible.show()


def grad_sink(model: nn.Module) -> GradSink:
    """Where gradients go that autograd's hooks do not see, such as those of a split backward."""
    return _Sink(sharding_of(model))
