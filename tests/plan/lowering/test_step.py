"""One optimizer step, last."""

from shardlab.plan import Action, Op
from shardlab.plan.lowering.step import step


def test_appends_one_step() -> None:
    before = [Action(Op.F, 0, 0), Action(Op.B, 0, 0)]
    assert list(step(before)) == [*before, Action(Op.STEP, 0)]
