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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from shardlab.zero.backward import BackwardPass
from shardlab.zero.gather import Gatherer
from shardlab.zero.reduce import Reducer
from shardlab.zero.saved import SavedTensors
from shardlab.zero.unit import FlatGroup, Member, Unit, UnitState
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
        self.saved = SavedTensors(gatherer) if gatherer is not None else None
        self.failed = False  # a backward raised and has not been tidied up yet
        for unit in units:
            for group in unit.trained:
                for member in group.members:
                    self._attach_param(group, member)
        if gatherer is not None:
            by_module: dict[nn.Module, list[Unit]] = {}
            for unit in units:
                for module in unit.modules:
                    by_module.setdefault(module, []).append(unit)
            for module, needed in by_module.items():
                module.register_forward_pre_hook(partial(self._pre_forward, needed), prepend=True, with_kwargs=True)
                module.register_forward_hook(partial(self._post_forward, needed), always_call=True)
        model.register_forward_pre_hook(self._root_pre, prepend=True, with_kwargs=True)
        model.register_forward_hook(self._root_post, always_call=True)

    # ---- parameters --------------------------------------------------------------------------------------------

    def _attach_param(self, group: FlatGroup, member: Member) -> None:
        def ready(p: Tensor) -> None:
            grad, p.grad = p.grad, None
            if grad is not None:
                self._take(group, member, grad)

        member.param.register_hook(lambda _: self.backward.begin())  # type: ignore[no-untyped-call]
        member.param.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]

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
        if self.gatherer is not None and self.saved is not None and not self.backward.running:
            self.saved.enter()
            if not any(unit.calls for unit in self.units):
                self.gatherer.begin(torch.is_grad_enabled())
        self.tidy()
        if self.compute is None:
            return None
        return tree_map(self._cast, args), tree_map(self._cast, kwargs)

    def _cast(self, x: Any) -> Any:
        return x.to(self.compute) if isinstance(x, Tensor) and x.is_floating_point() else x

    def _root_post(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.saved is not None and not self.backward.running:
            self.saved.leave()
        for x in _differentiable(output):
            x.register_hook(lambda _: self.backward.begin())  # type: ignore[no-untyped-call]

    def _pre_forward(self, needed: list[Unit], module: nn.Module, args: Any, kwargs: Any) -> None:
        assert self.gatherer is not None and self.saved is not None
        for unit in needed:  # counted before anything can raise: the post-forward hook runs in any case
            unit.calls += 1
        if not self.backward.running:
            self.saved.enter()
            self.tidy()
        for unit in needed:
            self.gatherer.need(unit)
            unit.in_backward |= self.backward.running
            if unit.frozen:
                self._await_inputs(unit, (args, kwargs))

    def _await_inputs(self, unit: Unit, inputs: Any) -> None:
        def came(_: Tensor) -> None:
            unit.awaited_inputs -= 1
            if unit.awaited_inputs == 0:
                self._free_if_done(unit)

        for x in _differentiable(inputs):
            unit.awaited_inputs += 1
            x.register_hook(came)  # type: ignore[no-untyped-call]

    def _post_forward(self, needed: list[Unit], module: nn.Module, args: Any, output: Any) -> None:
        assert self.gatherer is not None and self.saved is not None
        if not self.backward.running:
            self.saved.leave()
        for unit in needed:
            unit.calls -= 1
            if not (unit.calls or unit.held or unit.in_backward or self.backward.running):
                self.gatherer.free(unit)
        for x in _differentiable(output):
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
        self.visible.hide()

    def _end(self) -> None:
        self.reducer.end()
        self._free_all()
        if self.gatherer is not None:
            self.gatherer.order.end()
        self.visible.show()

    def _fail(self) -> None:
        self.failed = True

    def _free_all(self) -> None:
        if self.gatherer is not None:
            for unit in self.units:
                unit.in_backward, unit.awaited_inputs = False, 0
            self.gatherer.free_idle()

    def tidy(self) -> None:
        """After a backward that raised: free what it gathered, drop its local gradients, show what was held before."""
        if not self.failed:
            return
        self.failed = False
        self.reducer.abort()
        self._free_all()
        self.visible.show()


def _differentiable(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure through which a gradient will come."""
    return [x for x in _tensors(tree) if x.requires_grad and not isinstance(x, nn.Parameter)]


def _tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, mappings and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from _tensors(x)
    elif isinstance(tree, (list, tuple)):
        for x in tree:
            yield from _tensors(x)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for item in fields(tree):
            yield from _tensors(getattr(tree, item.name))
