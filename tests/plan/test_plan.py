"""A plan is validated where it is made, and survives JSON."""

import json

import pytest
from hypothesis import given, settings

from shardlab.plan import MeshShape, Plan, Precision, preset
from tests.plan.plans import make, plans


@settings(deadline=None)
@given(plans())
def test_json_both_ways(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_sizes() -> None:
    plan = make(dp=4, micro_batch=3, accumulation=2)
    assert (plan.dp, plan.global_batch, plan.batch.tokens) == (4, 24, 12)


def test_recomputed_layers_are_the_blocks() -> None:
    assert make(recompute="full").recomputed == ("blocks.0", "blocks.1", "blocks.2")
    assert make().recomputed == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero": 4}, "zero is 4; want 0, 1, 2 or 3"),
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"accumulation": True}, "accumulation is True"),
        ({"recompute": "selective"}, "'selective', which is not built yet"),
        ({"optimizer": "adamx"}, "optimizer 'adamx' is not known; nearest: 'adam"),
        ({"seq": 5}, "seq is 5, but model 'gpt' has 4 learned positions"),
    ],
)
def test_errors_name_the_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_parts_that_are_not_built_are_named() -> None:
    with pytest.raises(ValueError, match=r"mesh\.tp is 2: tp is not built yet"):
        Plan(preset("gpt2"), MeshShape({"dp": 2, "tp": 2}))
    with pytest.raises(ValueError, match="'fp8' is not built yet"):
        Precision.named("fp8")
    with pytest.raises(ValueError, match="has no blocks"):
        make("mlp", recompute="full")


def test_precision() -> None:
    assert Precision("torch.bfloat16").compute == "bf16"
    assert Precision.named("bf16") == Precision("bf16", "bf16", "bf16", "fp32")
    with pytest.raises(ValueError, match=r"precision\.reduce is int8"):
        Precision(reduce="int8")


def test_unknown_fields_and_schemas() -> None:
    data = make().to_dict()
    with pytest.raises(ValueError, match="no field 'zeros'"):
        Plan.from_dict({**data, "zeros": 1})
    with pytest.raises(ValueError, match="not a plan"):
        Plan.from_json(json.dumps({**data, "schema": "x"}))
