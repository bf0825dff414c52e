"""THE dependency rule: which actions must have ended before one may start. Written once; everyone calls it.

The life of a unit in one micro-batch at stage 3, for a unit used by two layers (visits 0, 1, 2):

    forward   GATHER  F first  FREE  ...  GATHER#1  F second  FREE#1
    backward  GATHER#2  B second  ...  B first  REDUCE  FREE#2

In forward a unit is freed after each use. In backward it stays until its last gradient is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.plan.action import Action, Op
from shardlab.plan.plan import Plan


@dataclass(frozen=True)
class StepShape:
    """What one step of a one-stage program is made of.

    Args:
        layers: Layers in forward order.
        users: Layers that use a unit, in forward order, by unit, in registration order of units.
        units_of: Units of each layer.
        reduced: Units whose gradients are reduced, in the order of their reductions: reverse registration.
        zero: ZeRO stage.
        recomputed: Layers that run forward again in backward.
        micro_batches: Backward passes per step.
    """

    layers: tuple[str, ...]
    users: Mapping[str, tuple[str, ...]]
    units_of: Mapping[str, tuple[str, ...]]
    reduced: tuple[str, ...]
    zero: int
    recomputed: frozenset[str]
    micro_batches: int

    @classmethod
    def of(cls, plan: Plan) -> StepShape:
        """Read the shape off a plan."""
        trained = [unit.name for unit in plan.model.units if any(param.requires_grad for param in unit.params)]
        return cls(
            layers=tuple(layer.name for layer in plan.model.layers),
            users={unit.name: unit.layers for unit in plan.model.units},
            units_of=plan.model.units_of,
            reduced=tuple(reversed(trained)),
            zero=plan.zero,
            recomputed=frozenset(plan.recomputed),
            micro_batches=plan.accumulation,
        )

    @property
    def reduce_op(self) -> Op:
        """How gradients are reduced at this stage."""
        return Op.ALLREDUCE if self.zero == 0 else Op.REDUCE

    def visit(self, op: Op, layer: str, unit: str) -> int:
        """Return which gather of a unit serves a layer: one for each forward use, one for the whole backward."""
        users = self.users[unit]
        return users.index(layer) if op is Op.F else len(users)


def _gathers(action: Action, shape: StepShape) -> list[Action]:
    if shape.zero < 3:
        return []
    return [
        Action(Op.GATHER, action.stage, action.micro_batch, unit, shape.visit(action.op, action.name, unit))
        for unit in shape.units_of[action.name]
    ]


def _compute(action: Action, shape: StepShape) -> list[Action]:
    at = shape.layers.index(action.name)
    stage, micro_batch = action.stage, action.micro_batch
    if action.op is Op.F:
        before = [Action(Op.F, stage, micro_batch, shape.layers[at - 1])] if at else []
        return before + _gathers(action, shape)
    found = [Action(Op.F, stage, micro_batch, action.name)]
    if at + 1 < len(shape.layers):
        found.append(Action(Op.B, stage, micro_batch, shape.layers[at + 1]))
    if action.op is Op.B and action.name in shape.recomputed:
        found.append(Action(Op.R, stage, micro_batch, action.name))
    return found + _gathers(action, shape)


def _gather(action: Action, shape: StepShape) -> list[Action]:
    stage, micro_batch, unit = action.stage, action.micro_batch, action.name
    users = shape.users[unit]
    if micro_batch is None:
        return [Action(Op.STEP, stage)]
    if action.visit:
        return [Action(Op.FREE, stage, micro_batch, unit, action.visit - 1)]
    return [Action(Op.FREE, stage, micro_batch - 1, unit, len(users))] if micro_batch else []


def _free(action: Action, shape: StepShape) -> list[Action]:
    users = shape.users[action.name]
    if action.visit < len(users):
        return [Action(Op.F, action.stage, action.micro_batch, users[action.visit])]
    return [Action(Op.B, action.stage, action.micro_batch, layer) for layer in users]


def _reduce(action: Action, shape: StepShape) -> list[Action]:
    found = [Action(Op.B, action.stage, action.micro_batch, layer) for layer in shape.users[action.name]]
    at = shape.reduced.index(action.name)
    return found + [
        Action(action.op, action.stage, action.micro_batch, unit) for unit in shape.reduced[max(at - 1, 0) : at]
    ]


def needs(action: Action, shape: StepShape) -> tuple[Action, ...]:
    """Return the actions that must have ended before `action` may start.

    Raises:
        ValueError: If the action has no place in the step: an unknown layer or unit, or an op of another kind.
    """
    try:
        if action.op in (Op.F, Op.B, Op.R):
            return tuple(_compute(action, shape))
        if action.op is Op.GATHER:
            return tuple(_gather(action, shape))
        if action.op is Op.FREE:
            return tuple(_free(action, shape))
        if action.op is shape.reduce_op:
            return tuple(_reduce(action, shape))
    except (ValueError, KeyError):
        raise ValueError(f"{action} names {action.name!r}, which the step does not have") from None
    if action.op is Op.STEP:
        last = range(shape.micro_batches)
        return tuple(Action(shape.reduce_op, action.stage, mb, unit) for mb in last for unit in shape.reduced)
    raise ValueError(f"{action} has no place in a one-stage step at ZeRO stage {shape.zero}")
