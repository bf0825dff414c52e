"""A program: every action of one step of one pipeline coordinate, in order, verified when it is made.

It is the same for all ranks along dp, tp and cp. `compile_plan` makes it: the schedule, then the passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.plan.action import Action
from shardlab.plan.lowering.recompute import recompute
from shardlab.plan.lowering.step import step
from shardlab.plan.lowering.zero import zero
from shardlab.plan.needs import StepShape, needs
from shardlab.plan.plan import Plan
from shardlab.plan.schedules.one_stage import one_stage
from shardlab.plan.verify import verify


@dataclass(frozen=True)
class Program:
    """The actions of one step.

    Args:
        shape: What the step is made of.
        actions: The actions in program order.

    Raises:
        ValueError: If a rule of `plan/verify` is broken.
    """

    shape: StepShape
    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        verify(self.actions, self.shape)

    def __iter__(self) -> Iterator[Action]:
        return iter(self.actions)

    def __len__(self) -> int:
        return len(self.actions)

    def __str__(self) -> str:
        return ",".join(str(action) for action in self.actions)

    def needs(self, action: Action) -> tuple[Action, ...]:
        """Return the actions that must have ended before `action` may start."""
        return needs(action, self.shape)


def parse_program(text: str, shape: StepShape) -> Program:
    """Read what `str(program)` wrote.

    Raises:
        ValueError: If an action is not understood or a rule is broken.
    """
    return Program(shape, tuple(Action.parse(word) for word in text.split(",") if word.strip()))


def compile_plan(plan: Plan) -> Program:
    """Lower a plan to the program of one step.

    Raises:
        ValueError: If the model is a bare count, which has no layers to run.
    """
    if plan.model.states_only:
        raise ValueError(f"model {plan.model.name!r} is a bare count: it has no layers to run")
    shape = StepShape.of(plan)
    actions = step(recompute(one_stage(shape), shape))
    return Program(shape, tuple(zero(actions, shape, plan.prefetch)))
