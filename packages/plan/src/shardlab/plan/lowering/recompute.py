"""Insert the second forward of each layer that kept only its input, right before its backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlab.plan.action import Action, Op
from shardlab.plan.needs import StepShape


def recompute(actions: Iterable[Action], shape: StepShape) -> Iterator[Action]:
    """Yield the actions with one R before each B of a recomputed layer."""
    for action in actions:
        if action.op is Op.B and action.name in shape.recomputed:
            yield Action(Op.R, action.stage, action.micro_batch, action.name)
        yield action
