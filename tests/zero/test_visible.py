"""What `.grad` shows, asked of VisibleGrads itself; the loops of users are in test_lifecycle_grads.py."""

import pytest
import torch

from shardlab.zero.shown import GradPart, ShardedGradError, StandIn
from shardlab.zero.unit import FlatGroup
from shardlab.zero.visible import VisibleGrads, set_grad
from tests.zero.test_unit import group_of


def holding(whole: bool, shards: int = 1) -> tuple[VisibleGrads, FlatGroup]:
    """Two parameters of which the first has a gradient of twos; this is index 0."""
    group = group_of([4, 3], shards, 0)
    group.acc = torch.zeros(group.layout.shard_numel)
    first, second = group.members
    first.of(group.acc)[:4] = 2.0
    first.holds = True
    for member, piece in group.pieces_of(group.acc):
        member.segment = member.param if whole else torch.nn.Parameter(torch.ones_like(piece))
    assert second.param.grad is None
    return VisibleGrads([group], whole), group


def test_whole_gradients_are_shown_as_they_are() -> None:
    visible, group = holding(whole=True)
    visible.show()
    first, second = group.members
    assert first.param.grad is not None and first.param.grad.tolist() == [2.0] * 4
    assert second.param.grad is None
    first.param.grad.mul_(3)
    assert group.acc is not None and first.of(group.acc).tolist() == [6.0] * 4, "it is the accumulator itself"


def test_sharded_ones_are_stood_in_for_and_pieces_refuse_norms() -> None:
    visible, group = holding(whole=False, shards=2)
    visible.show()
    first, _ = group.members
    assert isinstance(first.param.grad, StandIn) and first.param.grad.shape == (4,)
    assert first.segment is not None and isinstance(first.segment.grad, GradPart)
    assert (first.segment.grad * 1).tolist() == [2.0] * 4
    with pytest.raises(ShardedGradError):
        torch.linalg.vector_norm(first.segment.grad)


@pytest.mark.parametrize("by", ["param", "segment"])
def test_what_was_cleared_is_forgotten(by: str) -> None:
    visible, group = holding(whole=False)
    visible.show()
    first = group.members[0]
    assert first.segment is not None
    (first.param if by == "param" else first.segment).grad = None
    visible.forget_cleared()
    assert not first.holds
    assert first.param.grad is None and first.segment.grad is None


@pytest.mark.parametrize("whole", [True, False])
def test_hiding_is_not_clearing(whole: bool) -> None:
    visible, group = holding(whole)
    visible.show()
    visible.hide()
    first = group.members[0]
    assert first.param.grad is None and first.holds
    visible.show()
    assert first.param.grad is not None


def test_a_gradient_of_the_users_own_is_taken_where_it_fits() -> None:
    visible, group = holding(whole=True)
    second = group.members[1]
    second.param.grad = torch.full((3,), 5.0)
    visible.hide()
    assert second.holds and group.acc is not None
    assert second.of(group.acc).tolist() == [5.0] * 3


def test_and_refused_where_it_does_not() -> None:
    visible, group = holding(whole=False)
    group.members[1].param.grad = torch.full((3,), 5.0)
    with pytest.raises(ShardedGradError, match=r"'p1': .grad was set to a tensor[\s\S]*grad_sink"):
        visible.hide()


@pytest.mark.parametrize("whole", [True, False])
def test_what_no_sync_keeps_is_stood_in_for(whole: bool) -> None:
    visible, group = holding(whole)
    second = group.members[1]
    second.kept = True
    visible.show()
    assert isinstance(second.param.grad, StandIn)
    visible.forget_cleared()
    assert second.kept
    second.param.grad = None
    visible.forget_cleared()
    assert not second.kept


def test_without_an_accumulator_nothing_is_shown() -> None:
    group = group_of([4], 1, 0)
    VisibleGrads([group], True).show()
    assert group.members[0].param.grad is None


def test_clear_drops_all() -> None:
    visible, group = holding(whole=False)
    group.members[1].kept = True
    visible.show()
    visible.clear()
    for member in group.members:
        assert not (member.holds or member.kept)
        assert member.param.grad is None
        assert member.segment is not None and member.segment.grad is None


def test_set_grad() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    set_grad(p, torch.ones(2))
    assert p.grad is not None
    set_grad(p, None)
    assert p.grad is None
