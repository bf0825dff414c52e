"""One second forward per block, right before its backward."""

from shardlab.plan import Op, StepShape
from shardlab.plan.lowering.recompute import recompute
from shardlab.plan.schedules.one_stage import one_stage
from tests.plan.plans import make


def test_inserts_right_before_the_backward_of_blocks() -> None:
    shape = StepShape.of(make(recompute="full", accumulation=2))
    before = one_stage(shape)
    after = list(recompute(before, shape))
    assert tuple(a for a in after if a.op is not Op.R) == before
    again = [k for k, a in enumerate(after) if a.op is Op.R]
    assert [str(after[k + 1]) for k in again] == [f"0B{m}@blocks.{b}" for m in (0, 1) for b in (2, 1, 0)]


def test_without_recompute_nothing_changes() -> None:
    shape = StepShape.of(make())
    assert tuple(recompute(one_stage(shape), shape)) == one_stage(shape)
