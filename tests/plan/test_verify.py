"""Each rule catches a program that breaks it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.plan import Action, Op, Plan, Program, compile_plan
from tests.plan.plans import make, plans


def without(program: Program, text: str) -> tuple[Action, ...]:
    return tuple(a for a in program if str(a) != text)


def test_unique() -> None:
    program = compile_plan(make(zero=3))
    with pytest.raises(ValueError, match=r"0STEP appears twice \(unique\)"):
        Program(program.shape, (*program.actions, Action(Op.STEP, 0)))


def test_micro_batch_in_range() -> None:
    program = compile_plan(make())
    with pytest.raises(ValueError, match=r"0F1@loss names a micro-batch outside 0\.\.0"):
        Program(program.shape, (*program.actions, Action(Op.F, 0, 1, "loss")))


@pytest.mark.parametrize("text", ["0F0@loss", "0STEP", "0ALL_REDUCE_GRAD0@blocks.1"])
def test_complete(text: str) -> None:
    program = compile_plan(make(zero=0))
    with pytest.raises(ValueError, match=f"{text} is missing"):
        Program(program.shape, without(program, text))


def test_needs_present() -> None:
    program = compile_plan(make(zero=3))
    with pytest.raises(ValueError, match=r"needs 0UNSHARD0@blocks.1, which nobody runs"):
        Program(program.shape, without(program, "0UNSHARD0@blocks.1"))


def test_resting_state() -> None:
    program = compile_plan(make(zero=3))
    with pytest.raises(ValueError, match=r"blocks.1 still gathered at the end"):
        Program(program.shape, without(program, "0RESHARD0@blocks.1#1"))


def test_use_while_live() -> None:
    program = compile_plan(make("mlp", zero=3, prefetch=False))
    texts = [str(a) for a in program]
    at = texts.index("0RESHARD0@layers.1#1")
    actions = list(program.actions)
    actions.insert(at - 2, actions.pop(at))
    with pytest.raises(ValueError, match=r"stands before|while it is sharded"):
        Program(program.shape, tuple(actions))


@settings(deadline=None)
@given(plans(), st.data())
def test_swapping_an_action_with_one_it_needs_is_caught(plan: Plan, data: st.DataObject) -> None:
    program = compile_plan(plan)
    at = {action: k for k, action in enumerate(program)}
    edges = [(need, action) for action in program for need in program.needs(action)]
    first, second = data.draw(st.sampled_from(edges))
    actions = list(program.actions)
    actions[at[first]], actions[at[second]] = second, first
    with pytest.raises(ValueError, match=r"order respects needs|while it is sharded|is live|not live"):
        Program(program.shape, tuple(actions))
