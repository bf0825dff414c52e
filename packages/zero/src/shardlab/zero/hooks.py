"""Hooks are the events of the units' state machines.

                     stage 3                                        every stage
module pre-forward   gather the module's units
module post-forward  free them, unless a backward runs
gradient reaches     gather the unit, mark it as needed
  the outputs
saved tensor is      gather its unit
  unpacked
gradient of a                                                       take it, maybe send the unit
  parameter is ready
all of a unit's are  free it
backward ends        free everything                                send the rest, agree, show gradients
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from shardlab.zero.autocast import AutocastNotice
from shardlab.zero.backward import BackwardPass
from shardlab.zero.gather import Gatherer
from shardlab.zero.nested import differentiable
from shardlab.zero.reduce import Reducer
from shardlab.zero.saved import SavedTensors
from shardlab.zero.unit import Calls, FlatGroup, Member, Unit, UnitState
from shardlab.zero.visible import VisibleGrads

__all__ = ["Hooks"]


class Hooks:
    """Attaches a sharded model to autograd and to its modules' calls.

    Args:
        model: the root module.
        units: all units.
        reducer: takes gradients.
        gatherer: of stage 3, else None.
        visible: what `.grad` shows.
        compute: dtype to which floating inputs of the model are cast, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        reducer: Reducer,
        gatherer: Gatherer | None,
        visible: VisibleGrads,
        compute: torch.dtype | None,
    ) -> None:
        self.units, self.reducer, self.gatherer, self.visible, self.compute = units, reducer, gatherer, visible, compute
        self.backward = BackwardPass(self._begin, self._end, self._fail)
        self.saved = SavedTensors(gatherer, self.backward.begin) if gatherer is not None else None
        self.autocast = AutocastNotice(units)
        self.failed = False  # a backward raised and has not been tidied up yet
        for unit in units:
            for group in unit.trained:
                for member in group.members:
                    self._attach_param(group, member)
        if gatherer is not None:
            calls: dict[nn.Module, Calls] = {}
            for unit in units:
                for module in unit.modules:
                    calls.setdefault(module, Calls()).needed.append(unit)
            for module, of in calls.items():
                module.register_forward_pre_hook(partial(self._pre_forward, of), prepend=True, with_kwargs=True)
                module.register_forward_hook(partial(self._post_forward, of), always_call=True)
        self._root = Calls()
        self._on_leaves: list[RemovableHandle] = []  # hooks on leaf inputs, removed after backward
        model.register_forward_pre_hook(self._root_pre, prepend=True, with_kwargs=True)
        model.register_forward_hook(self._root_post, always_call=True)

    # ---- parameters --------------------------------------------------------------------------------------------

    def _attach_param(self, group: FlatGroup, member: Member) -> None:
        def ready(p: Tensor) -> None:
            grad, p.grad = p.grad, None
            if grad is not None:
                self._take(group, member, grad)

        def comes(_: Tensor) -> None:
            self.backward.begin()
            after: dict[int, Any] = member.param._post_accumulate_grad_hooks
            if next(reversed(after)) != handle.id:  # a user's later hook is to see the gradient before it is taken
                after[handle.id] = after.pop(handle.id)

        member.param.register_hook(comes)  # type: ignore[no-untyped-call]
        handle = member.param.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

    def _take(self, group: FlatGroup, member: Member, grad: Tensor) -> None:
        self.reducer.take(group, member, grad)
        self._free_if_done(group.unit)

    def _free_if_done(self, unit: Unit) -> None:
        """Free a unit whose backward is over: gradients taken and, with frozen parameters, those of its inputs out."""
        if self.gatherer is None or unit.state is not UnitState.LIVE or unit.calls or unit.held:
            return
        waits = unit.frozen and unit.awaited_inputs > 0
        if not waits and all(m.touched or not m.used for group in unit.trained for m in group.members):
            self.gatherer.free(unit)

    # ---- modules -----------------------------------------------------------------------------------------------

    def _root_pre(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._root.entered += 1
        if self.gatherer is not None and self.saved is not None and not self.backward.running:
            self.saved.enter()
            if not any(unit.calls for unit in self.units):
                self.autocast.before_forward()
                self.gatherer.begin(torch.is_grad_enabled())
        self.tidy()
        if self.compute is None:
            return None
        return tree_map(self._cast, args), tree_map(self._cast, kwargs)

    def _cast(self, x: Any) -> Any:
        return x.to(self.compute) if isinstance(x, Tensor) and x.is_floating_point() else x

    def _root_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._root.left():
            return
        if self.gatherer is not None and self.saved is not None and not self.backward.running:
            self.gatherer.end_forward()
            self.saved.leave()
        for x in differentiable(output):
            if not x.is_leaf:
                x.register_hook(lambda _: self.backward.begin())  # type: ignore[no-untyped-call]

    def _pre_forward(self, of: Calls, module: nn.Module, args: Any, kwargs: Any) -> None:
        assert self.gatherer is not None and self.saved is not None
        if _compiling():
            raise RuntimeError(
                f"torch.compile of {type(module).__name__} at stage 3: a compiled graph keeps hold of weights that are "
                "gathered and freed around it. Compile at stages 0 to 2, or functions that call no sharded module"
            )
        needed = of.needed
        of.entered += 1
        for unit in needed:  # counted before anything can raise: the post-forward hook runs in any case
            unit.calls += 1
        if not self.backward.running:
            self.saved.enter()
            self.tidy()
        for unit in needed:
            self.gatherer.need(unit)
            unit.in_backward |= self.backward.running
            if unit.frozen and torch.is_grad_enabled():
                self._await_inputs(unit, (args, kwargs))

    def _await_inputs(self, unit: Unit, inputs: Any) -> None:
        def came(_: Tensor) -> None:
            unit.awaited_inputs -= 1
            if unit.awaited_inputs == 0:
                self._free_if_done(unit)

        for x in differentiable(inputs):
            unit.awaited_inputs += 1
            handle = x.register_hook(came)  # type: ignore[no-untyped-call]
            if x.is_leaf:  # it may outlive the step, and hooks would pile up on it
                self._on_leaves.append(handle)

    def _post_forward(self, of: Calls, module: nn.Module, args: Any, output: Any) -> None:
        assert self.gatherer is not None and self.saved is not None
        if not of.left():
            return
        needed = of.needed
        if not self.backward.running:
            self.saved.leave()
        for unit in needed:
            unit.calls -= 1
            if not (unit.calls or unit.held or unit.in_backward or self.backward.running):
                self.gatherer.free(unit)
        for x in differentiable(output):
            if not x.is_leaf:  # a leaf is the user's own tensor, passed through
                x.register_hook(self._reached(needed))  # type: ignore[no-untyped-call]

    def _reached(self, needed: list[Unit]) -> Callable[[Tensor], None]:
        """The gradient has reached a unit's output: gather it, also when a recompute will run no hooks of modules."""

        def hook(_: Tensor) -> None:
            self.backward.begin()
            for unit in needed:
                assert self.gatherer is not None
                self.gatherer.need(unit)
                unit.in_backward = True

        return hook

    # ---- backward ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.tidy()
        self.visible.hide()

    def _end(self) -> None:
        self.reducer.end()
        self._free_all()
        if self.gatherer is not None:
            self.gatherer.order.end()
        self.visible.show()

    def _fail(self) -> None:
        """Show at once what is held, so that a clear by the user is seen; the rest waits for a time to communicate."""
        self.failed = True
        self.visible.show()

    def _free_all(self) -> None:
        if self.gatherer is not None:
            for unit in self.units:
                unit.in_backward, unit.awaited_inputs = False, 0
            while self._on_leaves:
                self._on_leaves.pop().remove()
            self.gatherer.free_idle()

    def before_step(self) -> None:
        """Nothing is gathered while the shards change: not even a unit fetched ahead for a use that did not come.

        Raises:
            RuntimeError: at stage 3, inside `gathered` or a forward; the values there would be old after the step.
        """
        self.tidy()
        if self.gatherer is None:
            return
        busy = next((unit for unit in self.units if unit.calls or unit.held), None)
        if busy is not None:
            where = "gathered()" if busy.held else "a forward"
            raise RuntimeError(
                f"optimizer.step() inside {where}: unit {busy.name!r} would keep its old values; step outside"
            )
        self.gatherer.free_idle()

    def tidy(self) -> None:
        """After a backward that raised: free what it had gathered and forget what it had not added yet."""
        if not self.failed:
            return
        self.failed = False
        self.reducer.abort()
        self._free_all()


def _compiling() -> bool:
    """Whether this call is traced by torch.compile, or run by it piecewise after a part could not be traced."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)
