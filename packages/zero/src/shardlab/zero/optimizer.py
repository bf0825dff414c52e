"""Make a torch optimizer update this rank's pieces, in place, so that groups, schedulers and hooks go on working.

Each parameter in the optimizer's groups is replaced by this rank's piece of it: a 1-D view of the shard, one per
parameter, left out where the rank owns nothing. One flat tensor instead would not be plain PyTorch: it has one step
count, so a parameter that was unused for two steps ends at 0.7101 where PyTorch has 0.8000.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.zero.unit import FlatGroup, Member

__all__ = ["ELEMENTWISE", "check_groups", "check_kind", "cut", "is_elementwise"]

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
)
"""Optimizers that treat each element by itself, so that a piece is updated as the whole would be."""


_COUNTS = ("step", "mu_product", "eta", "mu")
"""States of torch's optimizers that belong to a parameter as a whole; of a scalar one they have the shape, too."""


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether it is known, or says, that it treats each element by itself."""
    return type(optimizer) in ELEMENTWISE or bool(getattr(optimizer, "shardlab_elementwise", False))


def check_kind(optimizer: Optimizer, stage: int) -> None:
    """Refuse optimizers that need whole tensors where only pieces exist.

    Raises:
        ValueError: names the class. A class of one's own that is elementwise says so by ``shardlab_elementwise =
            True``.
    """
    if stage == 0 or is_elementwise(optimizer):
        return
    known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    raise ValueError(
        f"optimizer {type(optimizer).__name__} at stage {stage}: it is not known to be elementwise, and a rank "
        "holds 1-D "
        f"pieces of parameters. Known are {known}. If each element is updated by itself, set "
        f"{type(optimizer).__name__}.shardlab_elementwise = True; else use stage 0"
    )


def check_groups(optimizer: Optimizer, members: Iterable[Member], model: nn.Module) -> None:
    """Every trained parameter is in exactly one group, and every parameter in a group belongs to the model.

    Raises:
        ValueError: names the parameter or counts the strangers.
    """
    names = {p: name for name, p in model.named_parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = [tuple(p.shape) for p in listed if p not in names]
    if strangers:
        raise ValueError(
            f"the optimizer holds {len(strangers)} parameters that are not the model's, the first of shape "
            f"{strangers[0]}: "
            "make the optimizer from model.parameters() of the model that is passed, before it is sharded"
        )
    present = set(listed)
    missing = [member.name for member in members if member.param not in present]
    if missing:
        raise ValueError(
            f"parameter {missing[0]!r} requires a gradient but is in no optimizer group ({len(missing)} such): "
            "add it or set "
            "requires_grad_(False)"
        )


def cut(optimizer: Optimizer, groups: Iterable[FlatGroup], whole: bool) -> None:
    """Put pieces where the parameters were, and cut the state that the optimizer already has.

    Args:
        whole: stage 0: a parameter stays itself, or becomes a whole master copy.
    """
    owned = {member.param: (group, member) for group in groups for member in group.members}
    for param_group in optimizer.param_groups:
        pieces = []
        for p in param_group["params"]:
            if p not in owned:  # frozen: no state, no update
                continue
            group, member = owned[p]
            member.segment = _segment(group, member, whole)
            if member.segment is not None:
                pieces.append(member.segment)
            if member.segment is not p:
                _cut_state(optimizer, p, group, member, whole)
        param_group["params"][:] = pieces


def _segment(group: FlatGroup, member: Member, whole: bool) -> nn.Parameter | None:
    """This rank's piece of a parameter, as a parameter over the memory of the shard."""
    if whole and group.master is None:
        return member.param
    for owner, piece in group.pieces_of(group.values):
        if owner is member:
            return nn.Parameter(piece.view(member.param.shape) if whole else piece)
    return None


def _cut_state(optimizer: Optimizer, p: Tensor, group: FlatGroup, member: Member, whole: bool) -> None:
    """Move the state of a whole parameter to its piece; what is not of its shape (step counts) is kept as it is."""
    state = optimizer.state.pop(p, None)
    if not state or member.segment is None:
        return
    start, stop = next((start, stop) for owner, start, stop, _ in group.own if owner is member)
    cut_state = optimizer.state[member.segment]
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == p.shape and not (p.dim() == 0 and key in _COUNTS):
            value = value.to(group.dtypes.master, copy=True).reshape(-1)[start:stop].clone()
            value = value.view(p.shape) if whole else value
        cut_state[key] = value


Factory = Callable[[Iterable[nn.Parameter]], Optimizer]


def made(optimizer: Optimizer | Factory, model: nn.Module) -> Optimizer:
    """The optimizer itself, or what the factory makes of the model's parameters while they have their full shape.

    Raises:
        TypeError: neither.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if not callable(optimizer):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}; give a torch optimizer or a function of the parameters"
        )
    result: Any = optimizer(list(model.parameters()))
    if not isinstance(result, Optimizer):
        raise TypeError(f"the optimizer factory returned {type(result).__name__}, expected a torch.optim.Optimizer")
    return result
