"""Flops and wire bytes, against sums by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.plan import Action, Layout, Plan, calls, compile_plan, flops, model_flops, preset, step_bytes, wire_bytes
from shardlab.plan.mesh import MeshShape
from shardlab.plan.work import all_reduce_bytes, piece_numel
from tests.plan.plans import BF16, make, plans


@given(st.integers(0, 1000), st.integers(1, 9))
def test_pieces_of_an_all_reduce_cover(numel: int, size: int) -> None:
    pieces = [piece_numel(numel, size, index) for index in range(size)]
    assert sum(pieces) == numel and max(pieces) - min(pieces) <= 1 and pieces == sorted(pieces, reverse=True)
    posted = sum(all_reduce_bytes(numel, 4, size, index) for index in range(size))
    assert posted == 2 * 4 * numel * (size - 1)


@settings(deadline=None)
@given(plans())
def test_wire_bytes_by_stage(plan: Plan) -> None:
    size, found = plan.dp, wire_bytes(compile_plan(plan), plan).get("dp", 0)
    layouts = {u.name: Layout.of(u.groups(plan.precision.compute)[0], size) for u in plan.model.units}
    uncut = [Layout.of(u.groups(plan.precision.compute)[0], 1).numel for u in plan.model.units]
    compute, reduce = (2 if plan.precision.compute == "bf16" else 4), (2 if plan.precision.reduce == "bf16" else 4)
    whole = sum(layout.shard_numel for layout in layouts.values()) * (size - 1)
    used = sum(layouts[u.name].shard_numel * (len(u.layers) + 1) for u in plan.model.units) * (size - 1)
    passes = plan.accumulation
    want = {
        0: sum(all_reduce_bytes(numel, reduce, size, 0) for numel in uncut) * passes,
        1: whole * reduce * passes + whole * compute,
        2: whole * reduce * passes + whole * compute,
        3: (whole * reduce + used * compute) * passes,
    }[plan.zero]
    assert found == want


def test_calls_of_one_action() -> None:
    plan = make("mlp", dp=4, zero=3, precision=BF16)
    (gather,) = calls(Action.parse("0UNSHARD0@layers.0"), plan)
    assert (gather.op, gather.name, gather.axis) == ("all_gather", "layers.0", "dp")
    assert gather.payload_bytes == 4 * 32 * 2 and gather.wire_bytes == 3 * 32 * 2
    (reduce,) = calls(Action.parse("0REDUCE_GRAD0@layers.0"), plan)
    assert (reduce.op, reduce.payload_bytes, reduce.wire_bytes) == ("reduce_scatter", 4 * 32 * 4, 3 * 32 * 4)
    assert calls(Action.parse("0F0@layers.0"), plan) == ()


def test_model_flops_of_a_preset_match_the_paper_formula() -> None:
    model = preset("gpt-1.7b")
    plan = Plan(model, MeshShape({"dp": 2}), micro_batch=2, seq=2048)
    layers, hidden, seq, vocab, batch = 24, 2304, 2048, 51200, 4
    paper = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert model_flops(plan) == pytest.approx(paper, rel=1e-12)


def test_recompute_runs_the_forward_again() -> None:
    plan = make(recompute="full")
    assert flops(Action.parse("0R0@blocks.0"), plan) == flops(Action.parse("0F0@blocks.0"), plan) > 0
    assert flops(Action.parse("0B0@blocks.0"), plan) == 2 * flops(Action.parse("0F0@blocks.0"), plan)
    assert flops(Action.parse("0STEP"), plan) == 0


def test_optimizer_traffic() -> None:
    plan = make("mlp", zero=0)
    assert step_bytes(plan) == plan.model.numel * (4 + 2 * 4 * 3)
    assert step_bytes(make("mlp", zero=0, precision=BF16)) == plan.model.numel * (4 + 2 * 4 * 3 + 2)
