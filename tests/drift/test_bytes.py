"""State bytes, wire bytes, saved activations, and the order of calls: formula = dry run = real run, to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.comm import run_ranks
from shardlab.plan import MeshShape, Plan, Precision, mlp
from tests.drift.sources import BF16, MODELS, differences, dry, formula, plan_of, real

VARIANTS: list[dict[str, Any]] = [
    {},
    {"precision": BF16, "accumulation": 2, "recompute": "full"},
    {"accumulation": 2, "recompute": "full"},
    {"precision": BF16},
    {"accumulation": 2},
    {"precision": Precision.named("bf16"), "recompute": "full"},
    {"recompute": "full", "prefetch": False},
    {"precision": BF16, "accumulation": 2, "optimizer": "sgd-momentum"},
]


def plan_for(model: str, stage: int, ranks: int) -> Plan:
    """Each model and stage meets every variant once over 1 to 8 ranks."""
    variant = dict(VARIANTS[(ranks + 3 * stage) % len(VARIANTS)])
    if model == "mlp":
        variant.pop("recompute", None)
    return plan_of(model, ranks, zero=stage, **variant)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_three_sources_agree_on_lockstep_ranks(model: str, stage: int, ranks: int) -> None:
    plan = plan_for(model, stage, ranks)
    counted = run_ranks({"dp": ranks}, real, plan)
    assert len(counted) == ranks
    for rank, found in enumerate(counted):
        assert differences(formula=formula(plan, rank), real=found) == []
    for rank in {0, ranks - 1}:
        assert differences(dry=dry(plan, rank), real=counted[rank]) == []
    assert (sum(found.wire_bytes for found in counted) > 0) == (ranks > 1)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", MODELS)
def test_three_sources_agree_on_mpi_ranks(mpi_ranks: Any, model: str, stage: int) -> None:
    plan = plan_for(model, stage, 2 + stage % 3)
    for rank, found in enumerate(mpi_ranks(plan.dp)(real, plan)):
        assert differences(formula=formula(plan, rank), dry=dry(plan, rank), real=found) == []


def test_every_variant_meets_every_stage() -> None:
    for stage in range(4):
        assert {(ranks + 3 * stage) % len(VARIANTS) for ranks in range(1, 9)} == set(range(len(VARIANTS)))


def test_a_difference_is_told() -> None:
    plan = plan_of("gpt", 3, zero=3)
    told = differences(one=formula(plan, 0), two=formula(plan, 2))
    assert any(line.startswith(("state: one {'padding'", "held:")) for line in told), told
    again = differences(one=formula(plan, 0), two=formula(plan_of("gpt", 3, zero=2), 0))
    assert any("calls, the 0th" in line for line in again)


@pytest.mark.parametrize("stage", range(4))
def test_a_rank_that_owns_nothing(stage: int) -> None:
    tiny = Plan(mlp(widths=[3, 2, 2]), MeshShape({"dp": 3}), zero=stage, precision=BF16, micro_batch=2)
    for rank, found in enumerate(run_ranks({"dp": 3}, real, tiny)):
        said, ran = formula(tiny, rank), dry(tiny, rank)
        assert said.held == ran.held == found.held
        assert said.calls == ran.calls == found.calls
    nothing = run_ranks({"dp": 3}, real, tiny)[2]
    two_shards = 2 * 128  # of the master copy: nothing but padding
    assert (nothing.held["optimizer"] == two_shards) == (stage > 0)
