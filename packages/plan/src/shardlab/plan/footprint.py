"""Bytes by category as a fold over a program: each action adds or removes, and the highest sum is the peak.

Between steps a rank holds its state (`plan/state`). Within a step come and go

    activations   what forward keeps for backward (exact for the reference layers), and the temporaries of one layer
    gathered      whole units at stage 3, one flat buffer each
    buffers       at stages 2-3 the gradients of a unit from its first backward to its reduction; the receive side of a
                  reduction; a parameter's gradient before it is copied into the flat buffer

Temporaries are bounds, so the peak of a real run lies a little below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardlab.plan.action import Action, Op
from shardlab.plan.blocks import checkpoint_tensors, saved_bytes, transient_bytes
from shardlab.plan.dtypes import itemsize
from shardlab.plan.flat import flat_groups
from shardlab.plan.needs import StepShape
from shardlab.plan.plan import Plan
from shardlab.plan.state import state_bytes

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "padding")
"""Categories in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The peak of one rank in one step.

    Args:
        by_category: Bytes by category at the peak; they sum to `total_bytes`.
        at: The action during which the peak is reached, or None where nothing runs.
        saved_bytes: Most bytes of saved activations at any time.
        resting_bytes: Bytes between steps.
    """

    by_category: dict[str, int]
    at: Action | None
    saved_bytes: int
    resting_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes at the peak."""
        return sum(self.by_category.values())


@dataclass(slots=True)
class _Live:
    """What is alive beyond the resting state while one walks through a program."""

    saved: dict[tuple[int | None, str], int] = field(default_factory=dict)
    gathered: dict[str, int] = field(default_factory=dict)
    sending: dict[str, int] = field(default_factory=dict)


def footprint(actions: Iterable[Action], plan: Plan, rank: int = 0) -> Footprint:
    """Fold a program into its peak.

    Args:
        actions: The program, or the part of it up to the second micro-batch: the rest repeats.
        plan: The plan it comes from.
        rank: dp rank.
    """
    state = state_bytes(plan, rank)
    resting = sum(state.values())
    live, shape = _Live(), StepShape.of(plan)
    best = Footprint({**dict.fromkeys(CATEGORIES, 0), **state}, None, 0, resting)
    most_saved = 0
    for action in actions:
        _begin(action, plan, live, shape)
        activations, buffers = _temporaries(action, plan)
        saved = sum(live.saved.values())
        most_saved = max(most_saved, saved)
        now = {
            **state,
            "activations": saved + activations,
            "gathered": sum(live.gathered.values()),
            "buffers": state["buffers"] + sum(live.sending.values()) + buffers,
        }
        if sum(now.values()) > best.total_bytes:
            best = Footprint({name: now[name] for name in CATEGORIES}, action, 0, resting)
        _end(action, plan, live)
    return Footprint(best.by_category, best.at, most_saved, resting)


def _whole(plan: Plan, unit: str, dtype: str, trained_only: bool = False) -> int:
    return sum(group.whole_bytes(dtype) for group in flat_groups(plan)[unit] if group.trained or not trained_only)


def _begin(action: Action, plan: Plan, live: _Live, shape: StepShape) -> None:
    """Add what an action brings to life."""
    if action.op is Op.F:
        layer = plan.model.layer(action.name)
        recomputed = action.name in shape.recomputed
        kept = sum(t.nbytes for t in checkpoint_tensors(layer, plan.batch)) if recomputed else None
        live.saved[action.micro_batch, action.name] = saved_bytes(layer, plan.batch) if kept is None else kept
    elif action.op is Op.R:
        live.saved[action.micro_batch, f"{action.name} again"] = saved_bytes(plan.model.layer(action.name), plan.batch)
    elif action.op is Op.GATHER and plan.zero == 3:
        live.gathered[action.name] = _whole(plan, action.name, plan.precision.compute)
    elif action.op is Op.B and plan.zero >= 2:
        for unit in shape.units_of[action.name]:
            live.sending[unit] = _whole(plan, unit, plan.precision.reduce, trained_only=True)


def _end(action: Action, plan: Plan, live: _Live) -> None:
    """Remove what an action ends."""
    if action.op is Op.B:
        live.saved.pop((action.micro_batch, action.name), None)
        live.saved.pop((action.micro_batch, f"{action.name} again"), None)
    elif action.op is Op.FREE:
        live.gathered.pop(action.name, None)
    elif action.op is Op.REDUCE:
        live.sending.pop(action.name, None)


def _temporaries(action: Action, plan: Plan) -> tuple[int, int]:
    """Return the bytes of activations and of buffers that live only while an action runs."""
    if action.op in (Op.F, Op.B, Op.R):
        layer = plan.model.layer(action.name)
        backward = action.op is Op.B
        largest = max((p.numel for p in layer.params if p.requires_grad), default=0) if backward else 0
        return transient_bytes(layer, plan.batch, backward), largest * itemsize(plan.precision.compute)
    if action.op in (Op.REDUCE, Op.ALLREDUCE):
        return 0, _whole(plan, action.name, plan.precision.reduce, trained_only=True)
    return 0, 0
