"""Rules that every program keeps, each with its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.plan.action import Action, Op
from shardlab.plan.needs import StepShape, needs


def verify(actions: Sequence[Action], shape: StepShape) -> None:
    """Check a program of one step.

    Rules: unique; micro-batch in range; complete; needs present; program order respects needs; resting state restored.

    Raises:
        ValueError: If a rule is broken; the message names the actions and the rule.
    """
    at: dict[Action, int] = {}
    for step, action in enumerate(actions):
        if action in at:
            raise ValueError(f"step {step}: {action} appears twice (unique)")
        if action.micro_batch is not None and not 0 <= action.micro_batch < shape.micro_batches:
            raise ValueError(
                f"step {step}: {action} names a micro-batch outside 0..{shape.micro_batches - 1} (micro-batch in range)"
            )
        at[action] = step
    for wanted in _required(shape):
        if wanted not in at:
            raise ValueError(f"{wanted} is missing (complete)")
    for action, step in at.items():
        for need in needs(action, shape):
            if need not in at:
                raise ValueError(f"step {step}: {action} needs {need}, which nobody runs (needs present)")
            if at[need] > step:
                raise ValueError(f"step {step}: {action} stands before {need}, which it needs (order respects needs)")
    _resting(actions, shape)


def _required(shape: StepShape) -> list[Action]:
    """Return the actions that every step has."""
    found = [Action(Op.STEP, 0)]
    for micro_batch in range(shape.micro_batches):
        for layer in shape.layers:
            found += [Action(Op.F, 0, micro_batch, layer), Action(Op.B, 0, micro_batch, layer)]
        found += [Action(shape.reduce_op, 0, micro_batch, unit) for unit in shape.reduced]
    if shape.zero in (1, 2):
        found += [Action(Op.GATHER, 0, None, unit) for unit in shape.reduced]
    return found


def _resting(actions: Sequence[Action], shape: StepShape) -> None:
    """Check that units are freed only when live, used only when live, and all freed at the end."""
    if shape.zero < 3:
        return
    live: set[str] = set()
    for step, action in enumerate(actions):
        if action.op is Op.GATHER:
            if action.name in live:
                raise ValueError(f"step {step}: {action} gathers a unit that is live (memory never doubled)")
            live.add(action.name)
        elif action.op is Op.FREE:
            if action.name not in live:
                raise ValueError(f"step {step}: {action} frees a unit that is not live (memory never negative)")
            live.remove(action.name)
        elif action.op in (Op.F, Op.B, Op.R):
            for unit in shape.units_of[action.name]:
                if unit not in live:
                    raise ValueError(f"step {step}: {action} uses unit {unit!r} while it is sharded (use while live)")
    if live:
        raise ValueError(f"{' '.join(sorted(live))} still gathered at the end of the step (resting state restored)")
