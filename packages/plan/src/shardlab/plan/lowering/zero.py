"""Insert what ZeRO does around compute: gather, free, reduce.

    stage 0    all-reduce each unit's gradients when its backward ends
    stage 1-2  reduce-scatter instead; after the step all-gather the parameters
    stage 3    all-gather before a unit is used, free after; nothing after the step

Reductions are issued in reverse registration order of units: a finished unit waits for those before it, so that all
ranks issue the same sequence. With prefetch, whoever needs a unit first makes sure of its own gather and then starts
that of the next unit in the order of use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlab.plan.action import Action, Op
from shardlab.plan.needs import StepShape

_COMPUTE = (Op.F, Op.B, Op.R)


def zero(actions: Iterable[Action], shape: StepShape, prefetch: bool = True) -> Iterator[Action]:
    """Yield the actions with those of ZeRO inserted.

    Args:
        actions: Compute actions of one step, then STEP.
        shape: The step.
        prefetch: Whether a gather of the next unit is started early at stage 3.
    """
    pending = tuple(actions)
    gathers = _Gathers(shape, prefetch, pending) if shape.zero == 3 else None
    done: dict[int, set[str]] = {}
    issued: dict[int, int] = {}
    for action in pending:
        if gathers and action.op in _COMPUTE:
            yield from gathers.before(action)
        yield action
        if action.op is Op.B and action.micro_batch is not None:
            micro_batch = action.micro_batch
            done.setdefault(micro_batch, set()).add(action.name)
            for unit in shape.reduced[issued.get(micro_batch, 0) :]:
                if not done[micro_batch].issuperset(shape.users[unit]):
                    break
                issued[micro_batch] = issued.get(micro_batch, 0) + 1
                yield Action(shape.reduce_op, action.stage, micro_batch, unit)
        if gathers and action.op in _COMPUTE:
            yield from gathers.after(action, done)
        if action.op is Op.STEP and shape.zero in (1, 2):
            for unit in reversed(shape.reduced):
                yield Action(Op.GATHER, action.stage, None, unit)


class _Gathers:
    """Which units are live while one walks through the compute actions."""

    def __init__(self, shape: StepShape, prefetch: bool, actions: tuple[Action, ...]) -> None:
        self.shape, self.prefetch = shape, prefetch
        self.live: set[str] = set()
        self.visits: dict[tuple[int | None, str], int] = {}
        self.uses: dict[int | None, list[tuple[Op, str, str]]] = {}
        for action in actions:
            if action.op in (Op.F, Op.B):
                for unit in shape.units_of[action.name]:
                    self.uses.setdefault(action.micro_batch, []).append((action.op, action.name, unit))
        self.at: dict[int | None, int] = {}

    def before(self, action: Action) -> Iterator[Action]:
        """Gather what the action needs, and start what comes next."""
        for unit in self.shape.units_of[action.name]:
            yield from self._gather(action, unit)
            follower = self._follower(action, unit)
            if self.prefetch and follower is not None:
                yield from self._gather(action, follower)

    def _follower(self, action: Action, unit: str) -> str | None:
        """Return the unit of the use after this one in the same micro-batch."""
        uses, at = self.uses[action.micro_batch], self.at.get(action.micro_batch, -1)
        op = Op.B if action.op is Op.R else action.op
        if at < 0 or uses[at] != (op, action.name, unit):
            at = uses.index((op, action.name, unit), at + 1)
        self.at[action.micro_batch] = at
        return uses[at + 1][2] if at + 1 < len(uses) else None

    def _gather(self, action: Action, unit: str) -> Iterator[Action]:
        if unit not in self.live:
            self.live.add(unit)
            visit = self.visits.get((action.micro_batch, unit), 0)
            yield Action(Op.GATHER, action.stage, action.micro_batch, unit, visit)

    def after(self, action: Action, done: dict[int, set[str]]) -> Iterator[Action]:
        """Free after each forward use, and after the last backward use; not after a recompute."""
        for unit in self.shape.units_of[action.name]:
            finished = action.micro_batch is not None and done.get(action.micro_batch, set()).issuperset(
                self.shape.users[unit]
            )
            if action.op is Op.F or (action.op is Op.B and finished):
                visit = self.visits.get((action.micro_batch, unit), 0)
                self.visits[action.micro_batch, unit] = visit + 1
                self.live.discard(unit)
                yield Action(Op.FREE, action.stage, action.micro_batch, unit, visit)
