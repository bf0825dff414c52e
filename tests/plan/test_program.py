"""Compiled programs: verified, printable, and as the runtime is specified."""

import pytest
from hypothesis import given, settings

from shardlab.plan import MeshShape, Plan, compile_plan, count, parse_program
from tests.plan.plans import make, plans


@settings(deadline=None)
@given(plans())
def test_every_plan_compiles_and_its_text_reads_back(plan: Plan) -> None:
    program = compile_plan(plan)
    assert parse_program(str(program), program.shape) == program
    assert len(list(program)) == len(program)


def test_stage_3_with_prefetch_action_by_action() -> None:
    program = compile_plan(make("mlp", zero=3))
    assert str(program).split(",") == [
        "0UNSHARD0@layers.0", "0UNSHARD0@layers.1", "0F0@layers.0", "0RESHARD0@layers.0",
        "0F0@layers.1", "0RESHARD0@layers.1", "0F0@loss", "0B0@loss",
        "0UNSHARD0@layers.1#1", "0UNSHARD0@layers.0#1", "0B0@layers.1", "0REDUCE_GRAD0@layers.1",
        "0RESHARD0@layers.1#1", "0B0@layers.0", "0REDUCE_GRAD0@layers.0", "0RESHARD0@layers.0#1", "0STEP",
    ]  # fmt: skip


def test_stage_1_gathers_parameters_after_the_step() -> None:
    program = compile_plan(make("mlp", zero=1))
    assert str(program).endswith("0STEP,0UNSHARD@layers.0,0UNSHARD@layers.1")


def test_needs_of_a_program() -> None:
    program = compile_plan(make("mlp", zero=0))
    assert [str(a) for a in program.needs(program.actions[1])] == ["0F0@layers.0"]


def test_a_bare_count_has_nothing_to_run() -> None:
    with pytest.raises(ValueError, match="bare count"):
        compile_plan(Plan(count(7.5e9), MeshShape({"dp": 64})))
