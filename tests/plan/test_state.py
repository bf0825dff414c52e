"""What a rank holds between steps, against sums by hand and against the layouts."""

import pytest
from hypothesis import given, settings

from shardlab.plan import Layout, MeshShape, Plan, Precision, count, held_bytes, holdings, itemsize, state_bytes
from tests.plan.plans import BF16, make, plans


@pytest.mark.parametrize(("zero", "gb"), [(0, 120.0), (1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_zero_paper_figure_1(zero: int, gb: float) -> None:
    plan = Plan(count(7.5e9), MeshShape({"dp": 64}), zero=zero, precision=Precision.named("bf16"))
    found = state_bytes(plan)
    assert found["parameters"] + found["gradients"] + found["optimizer"] == gb * 1e9
    assert found["buffers"] == (7_500_000_000 * 2 // 64 if zero == 1 else 0)


@settings(deadline=None)
@given(plans())
def test_categories_and_padding_sum_to_what_is_held(plan: Plan) -> None:
    for rank in range(plan.dp):
        assert sum(state_bytes(plan, rank).values()) == sum(held_bytes(plan, rank).values())
        assert held_bytes(plan, rank).keys() == {"parameters", "gradients", "optimizer", "buffers"}


@settings(deadline=None)
@given(plans())
def test_ranks_together_hold_every_moment_once_or_everywhere(plan: Plan) -> None:
    total = sum(h.held_bytes for rank in range(plan.dp) for h in holdings(plan, rank) if h.what == "moment 1")
    copies = plan.dp if plan.zero == 0 else 1
    assert total == plan.model.numel * itemsize(plan.precision.master) * copies


def test_stage_3_against_layouts_one_by_one() -> None:
    plan = make("llama", dp=3, zero=3, precision=BF16)
    layouts = [Layout.of(group, 3) for unit in plan.model.units for group in unit.groups("bf16")]
    shard = sum(layout.shard_numel for layout in layouts)
    pieces = [piece for layout in layouts for piece in layout.pieces(1)]
    held = held_bytes(plan, 1)
    assert held["parameters"] == 2 * shard and held["gradients"] == 4 * shard
    assert held["optimizer"] == 4 * shard + 2 * 4 * sum(p.numel for p in pieces) + 4 * len(pieces)
    assert held["buffers"] == 2 * 4 * plan.model.config["positions"] * 2  # rotary tables, head_dim 4


def test_stage_0_in_fp32_needs_no_master_copy() -> None:
    plan = make("mlp", zero=0)
    layouts = [Layout.of(group, 1) for unit in plan.model.units for group in unit.groups()]
    assert [h.what for h in holdings(plan)] == ["parameters", "gradients", "moment 1", "moment 2", "step counters"]
    held = held_bytes(plan)
    assert held["parameters"] == held["gradients"] == sum(layout.nbytes for layout in layouts)
    assert held["optimizer"] == 2 * 4 * plan.model.numel + 4 * 4


def test_there_is_no_such_rank() -> None:
    with pytest.raises(ValueError, match=r"dp rank 2 is outside 0\.\.1"):
        state_bytes(make(dp=2), rank=2)
