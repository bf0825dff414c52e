"""The dependency rule, by example."""

import pytest

from shardlab.plan import Action, StepShape, needs
from tests.plan.plans import make


def need(text: str, shape: StepShape) -> list[str]:
    return [str(action) for action in needs(Action.parse(text), shape)]


def test_compute_at_stage_3_of_a_tied_model() -> None:
    shape = StepShape.of(make(zero=3, recompute="full"))
    assert need("0F0@embed.tok", shape) == ["0UNSHARD0@embed.tok.weight"]
    assert need("0F0@head.out", shape) == ["0F0@head.norm", "0UNSHARD0@embed.tok.weight#1"]
    assert need("0B0@loss", shape) == ["0F0@loss"]
    assert need("0B0@head.out", shape) == ["0F0@head.out", "0B0@loss", "0UNSHARD0@embed.tok.weight#2"]
    assert need("0B0@blocks.1", shape) == ["0F0@blocks.1", "0B0@blocks.2", "0R0@blocks.1", "0UNSHARD0@blocks.1#1"]
    assert need("0R0@blocks.1", shape) == ["0F0@blocks.1", "0B0@blocks.2", "0UNSHARD0@blocks.1#1"]


def test_life_of_a_tied_unit() -> None:
    shape = StepShape.of(make(zero=3, accumulation=2))
    unit = "embed.tok.weight"
    assert need(f"0UNSHARD0@{unit}", shape) == []
    assert need(f"0RESHARD0@{unit}", shape) == ["0F0@embed.tok"]
    assert need(f"0UNSHARD0@{unit}#1", shape) == [f"0RESHARD0@{unit}"]
    assert need(f"0RESHARD0@{unit}#2", shape) == ["0B0@embed.tok", "0B0@head.out"]
    assert need(f"0UNSHARD1@{unit}", shape) == [f"0RESHARD0@{unit}#2"]


def test_reductions_wait_for_those_before() -> None:
    shape = StepShape.of(make(zero=2))
    assert shape.reduced == ("head.norm", "blocks.2", "blocks.1", "blocks.0", "embed.pos", "embed.tok.weight")
    assert need("0REDUCE_GRAD0@head.norm", shape) == ["0B0@head.norm"]
    assert need("0REDUCE_GRAD0@embed.tok.weight", shape) == [
        "0B0@embed.tok", "0B0@head.out", "0REDUCE_GRAD0@embed.pos"]  # fmt: skip
    assert need("0UNSHARD@blocks.0", shape) == ["0STEP"]
    assert need("0F0@blocks.0", shape) == ["0F0@embed.pos"]


def test_step_waits_for_every_reduction() -> None:
    shape = StepShape.of(make("mlp", zero=0, accumulation=2))
    assert need("0STEP", shape) == [f"0ALL_REDUCE_GRAD{m}@layers.{k}" for m in (0, 1) for k in (1, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0@nowhere", "names 'nowhere'"),
        ("0UNSHARD0@head.out", "names 'head.out'"),
        ("0SEND_F0", "no place in a one-stage step"),
        ("0ALL_REDUCE_GRAD0@blocks.0", "no place in a one-stage step at ZeRO stage 3"),
    ],
)
def test_what_the_step_does_not_have(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        needs(Action.parse(text), StepShape.of(make(zero=3)))
