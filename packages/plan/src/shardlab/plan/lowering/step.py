"""Append the optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlab.plan.action import Action, Op


def step(actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, then one STEP."""
    yield from actions
    yield Action(Op.STEP, 0)
