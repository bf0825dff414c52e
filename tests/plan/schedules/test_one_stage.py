"""All layers forward, all backward, micro-batch by micro-batch."""

from shardlab.plan import StepShape
from shardlab.plan.schedules.one_stage import one_stage
from tests.plan.plans import make


def test_order() -> None:
    found = [str(a) for a in one_stage(StepShape.of(make("mlp", accumulation=2)))]
    once = ["F{}@layers.0", "F{}@layers.1", "F{}@loss", "B{}@loss", "B{}@layers.1", "B{}@layers.0"]
    assert found == [f"0{text.format(m)}" for m in (0, 1) for text in once]
