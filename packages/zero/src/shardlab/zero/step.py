"""What happens around `optimizer.step`: check gradients, let it update its pieces, make the weights whole again."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from shardlab.comm.communicator import MIN, Communicator
from shardlab.comm.guard import agree
from shardlab.comm.values import host_value
from shardlab.zero.hooks import Hooks
from shardlab.zero.optimizer import is_elementwise
from shardlab.zero.shown import part_of
from shardlab.zero.stage0 import Stage0
from shardlab.zero.unit import FlatGroup, Member, Unit

__all__ = ["NonFiniteGradientError", "StepHooks"]


class NonFiniteGradientError(FloatingPointError):
    """A gradient holds inf or NaN, and the precision asks for an error."""


class StepHooks:
    """Runs before and after each step of one optimizer.

    Attributes:
        skipped: steps that were left out because a gradient was not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        units: list[Unit],
        stage: Stage0,
        comms: list[Communicator],
        hooks: Hooks,
        non_finite: Literal["skip", "raise", "ignore"],
    ) -> None:
        self.units, self.stage, self.comms, self.hooks, self.non_finite = units, stage, comms, hooks, non_finite
        self.visible = hooks.visible
        self.skipped = 0
        self._skip = False
        self._trainable = {m: m.param.requires_grad for unit in units for group in unit.groups for m in group.members}
        self._model = model
        self._names = {m.name: m.param for unit in units for group in unit.groups for m in group.members}
        self._pieces = {p for group in optimizer.param_groups for p in group["params"]}
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)
        optimizer.__dict__["zero_grad"] = partial(self._zero_grad, optimizer.zero_grad)

    def _zero_grad(self, theirs: Callable[..., None], set_to_none: bool = True) -> None:
        """`optimizer.zero_grad`: clears a parameter also on ranks whose optimizer has no piece of it."""
        theirs(set_to_none)
        if set_to_none:
            self.visible.clear()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Make ready; what is returned takes the place of the arguments of `step`."""
        replaced = self._run_closure(args, kwargs)
        self._check_call()
        self._check_parameters(optimizer)
        self._check_places()
        self.hooks.before_step()
        for comm in self.comms:
            agree(comm, "step", "optimizer", 0)
        self.visible.forget_cleared()
        self.hooks.reducer.check_summed()
        bad = None if self.non_finite == "ignore" else self._first_non_finite()
        self._skip = bad is not None
        if bad is not None:
            message = f"the gradient of parameter {bad.name!r} is not finite on some rank (the first such parameter)"
            if self.non_finite == "raise":
                raise NonFiniteGradientError(f"{message}; the step was not taken")
            self.skipped += 1
            warnings.warn(f"{message}: step skipped on all ranks, gradients dropped", stacklevel=4)
            self.visible.clear()
        for group in self.visible.groups:
            _cast_grads(group)
        return replaced

    def _run_closure(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Run the closure of `step(closure)` here, before gradients are checked and cast; leave its loss in its place.

        An elementwise optimizer would call it once, first thing. Others, at stage 0, call it as often as they like.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not is_elementwise(args[0]):
            return None
        with torch.enable_grad():
            loss = closure()
        return (args[0], lambda: loss), {key: value for key, value in kwargs.items() if key != "closure"}

    def _check_call(self) -> None:
        """What would go wrong without a word: a step inside backward, a change of what is trained."""
        if self.hooks.backward.active:
            raise RuntimeError("optimizer.step() inside backward: gradients are still being summed; step after it")
        for member, before in self._trainable.items():
            if member.param.requires_grad != before:
                raise RuntimeError(
                    f"parameter {member.name!r}: requires_grad was {before} when the model was sharded and is "
                    f"now {not before}. Shard a fresh model after changing what is trained"
                )

    def _check_parameters(self, optimizer: Optimizer) -> None:
        """Parameters that came after `shard` would be trained on each rank by itself, or not at all."""
        if any(p not in self._pieces for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                "the optimizer has got a parameter since the model was sharded (add_param_group): it would be updated "
                "on each rank by itself. Put all parameters into the optimizer before shard"
            )
        for name, p in self._model.named_parameters():
            if self._names.get(name, p) is not p:
                raise RuntimeError(
                    f"parameter {name!r} was replaced by another object since the model was sharded (assignment, or "
                    "load_state_dict(assign=True)): the optimizer updates the old one. Copy values into it instead"
                )

    def _check_places(self) -> None:
        """Take edits of the weights over; weights moved after `shard` would not be those that are updated."""
        if not self.stage.keeps_full:
            return
        for group in (group for unit in self.units for group in unit.groups):
            for member in group.strayed():
                raise RuntimeError(
                    f"parameter {member.name!r} was moved out of the buffer that the optimizer updates, by .to(), "
                    ".half(), an assignment to .data or the like: do that before shard, or copy_ values into it"
                )
            with torch.no_grad():
                group.take_edits()

    def _first_non_finite(self) -> Member | None:
        """The first trained parameter, in registration order, whose gradient is not finite on any rank."""
        members = [m for unit in self.units for group in unit.trained for m in group.members]
        local = min((i for group in self.visible.groups for i in _non_finite(group, members)), default=len(members))
        first = torch.tensor([local])
        for comm in self.comms:
            if comm.size > 1:
                with comm.recorder.labelled(control=True):
                    comm.all_reduce(first, MIN)
        at = int(host_value(first[0], len(members)))
        return members[at] if at < len(members) else None

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._skip:
            with torch.no_grad():
                self.stage.after_step(self.units)
            self.visible.show()
        self.hooks.reducer.micro_batch = 0
        self.comms[0].recorder.step += 1


def _non_finite(group: FlatGroup, members: list[Member]) -> list[int]:
    """Positions in ``members`` of those whose held gradient piece has inf or NaN."""
    if group.acc is None or bool(host_value(torch.isfinite(group.acc).all(), True)):
        return []
    bad = [m for m, piece in group.pieces_of(group.acc) if m.holds and not torch.isfinite(piece).all()]
    return [members.index(m) for m in bad]


def _cast_grads(group: FlatGroup) -> None:
    """Give the optimizer gradients in the dtype of its weights where they were added up in another one."""
    if group.acc is None or group.acc.dtype == group.values.dtype:
        return
    cast = group.acc.to(group.values.dtype)
    for member, piece in group.pieces_of(cast):
        if member.segment is not None and member.holds:
            shaped = piece.view(member.segment.shape)
            member.segment.grad = shaped if member.segment.dim() != 1 else part_of(shaped)
