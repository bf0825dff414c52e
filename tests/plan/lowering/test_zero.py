"""ZeRO's pass only inserts, and inserts what the stages are."""

from collections import Counter

import pytest
from hypothesis import given, settings

from shardlab.plan import Op, Plan, StepShape, compile_plan
from shardlab.plan.lowering.recompute import recompute
from shardlab.plan.lowering.step import step
from shardlab.plan.lowering.zero import zero
from shardlab.plan.schedules.one_stage import one_stage
from tests.plan.plans import MODELS, make, plans

INSERTED = {Op.GATHER, Op.FREE, Op.REDUCE, Op.ALLREDUCE}


@settings(deadline=None)
@given(plans())
def test_erasing_gives_the_input_back(plan: Plan) -> None:
    shape = StepShape.of(plan)
    before = tuple(step(recompute(one_stage(shape), shape)))
    after = tuple(zero(before, shape, plan.prefetch))
    assert tuple(a for a in after if a.op not in INSERTED) == before


@settings(deadline=None)
@given(plans())
def test_counts_per_stage(plan: Plan) -> None:
    ops = Counter(action.op for action in compile_plan(plan))
    units, uses = len(plan.model.units), sum(len(unit.layers) for unit in plan.model.units)
    passes = plan.accumulation
    assert ops[Op.ALLREDUCE] == (units * passes if plan.zero == 0 else 0)
    assert ops[Op.REDUCE] == (units * passes if plan.zero else 0)
    assert ops[Op.GATHER] == {0: 0, 1: units, 2: units, 3: (uses + units) * passes}[plan.zero]
    assert ops[Op.FREE] == (ops[Op.GATHER] if plan.zero == 3 else 0)


@pytest.mark.parametrize("model", MODELS)
def test_prefetch_moves_gathers_but_adds_none(model: str) -> None:
    with_it = compile_plan(make(model, zero=3, accumulation=2))
    without = compile_plan(make(model, zero=3, accumulation=2, prefetch=False))
    assert sorted(map(str, with_it)) == sorted(map(str, without))
    assert with_it.actions != without.actions


def test_with_prefetch_the_next_gather_stands_before_the_compute() -> None:
    texts = [str(a) for a in compile_plan(make("llama", zero=3))]
    assert texts.index("0UNSHARD0@blocks.1") < texts.index("0F0@blocks.0")
    assert texts.index("0UNSHARD0@blocks.0#1") < texts.index("0B0@blocks.1")
    late = [str(a) for a in compile_plan(make("llama", zero=3, prefetch=False))]
    assert late.index("0UNSHARD0@blocks.1") == late.index("0F0@blocks.1") - 1
