"""Replay: needs are kept, lanes hold one action at a time, overlap hides what it can."""

import pytest
from hypothesis import given, settings

from shardlab.plan import Plan, compile_plan, lane_of, wire_bytes
from shardlab.sim.cost import Cost
from shardlab.sim.replay import replay, times
from tests.plan.plans import make, plans
from tests.sim.machine import round_machine, slow_links


@settings(deadline=None, max_examples=40)
@given(plans())
def test_needs_end_before_and_lanes_do_not_overlap(plan: Plan) -> None:
    program = compile_plan(plan)
    ledger = replay(program, Cost(plan, round_machine(), 1))
    ends: dict[object, float] = {}
    starts: dict[object, float] = {}
    spans = iter(ledger)
    lanes: dict[str, float] = {}
    for action in program:
        span = next(spans)
        starts[action], ends[action] = span.start_s, span.end_s
        lane = "compute" if lane_of(action.op) == "compute" else "link"
        assert span.start_s >= lanes.get(lane, 0.0) - 1e-12
        lanes[lane] = span.end_s
        assert all(ends[need] <= span.start_s + 1e-12 for need in program.needs(action))
    assert next(spans, None) is None


@settings(deadline=None, max_examples=40)
@given(plans())
def test_ledger_has_the_wire_bytes_of_the_program(plan: Plan) -> None:
    program = compile_plan(plan)
    ledger = replay(program, Cost(plan, round_machine(), 1))
    assert ledger.wire_bytes(axis="dp") == wire_bytes(program, plan).get("dp", 0)


def test_step_is_between_the_sum_of_compute_and_the_sum_of_all() -> None:
    plan = make("llama", dp=4, zero=3)
    program = compile_plan(plan)
    cost = Cost(plan, round_machine(), 1)
    found = times(replay(program, cost))
    whole = sum(cost.seconds(action) for action in program)
    assert found.compute + found.optimizer <= found.step <= whole
    assert found.step == pytest.approx(found.compute + found.optimizer + found.exposed)


def test_prefetch_hides_and_slow_links_show() -> None:
    early, late = make("llama", dp=4, zero=3), make("llama", dp=4, zero=3, prefetch=False)

    def exposed(plan: Plan, factor: float) -> float:
        return times(replay(compile_plan(plan), Cost(plan, slow_links(round_machine(), factor), 1))).exposed

    assert exposed(early, 1) < exposed(late, 1)
    assert exposed(early, 1) < exposed(early, 1e5)
