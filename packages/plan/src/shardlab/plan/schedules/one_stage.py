"""The schedule of one pipeline stage: each micro-batch runs all layers forward, then all backward."""

from __future__ import annotations

from shardlab.plan.action import Action, Op
from shardlab.plan.needs import StepShape


def one_stage(shape: StepShape) -> tuple[Action, ...]:
    """Return forward and backward of every layer, micro-batch by micro-batch."""
    found: list[Action] = []
    for micro_batch in range(shape.micro_batches):
        found += [Action(Op.F, 0, micro_batch, layer) for layer in shape.layers]
        found += [Action(Op.B, 0, micro_batch, layer) for layer in reversed(shape.layers)]
    return tuple(found)
