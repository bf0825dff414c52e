import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shardlab.plan.layout import Layout
from shardlab.zero.precision import own_dtypes
from shardlab.zero.unit import FlatGroup, Member, Unit, UnitState, specs_of

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=5)


def group_of(sizes: list[int], shards: int, index: int) -> FlatGroup:
    params = {f"p{i}": nn.Parameter(torch.full((n,), float(i + 1))) for i, n in enumerate(sizes)}
    layout = Layout.of(specs_of(params, torch.float32, True), shards)
    members = [Member(name, p, layout.offset(name), type(p)) for name, p in params.items()]
    group = FlatGroup(Unit("u", []), members, layout, own_dtypes(torch.float32), True, index)
    group.unit.groups.append(group)
    return group


def full_of(group: FlatGroup) -> Tensor:
    full = torch.full((group.layout.numel,), -1.0)
    for member in group.members:
        member.of(full).copy_(member.param)
    return full


@given(SIZES, st.integers(1, 4))
def test_the_pieces_of_all_ranks_are_the_parameters(sizes: list[int], shards: int) -> None:
    whole: dict[str, list[Tensor]] = {}
    for index in range(shards):
        group = group_of(sizes, shards, index)
        for member, piece in group.pieces_of(group.part(full_of(group))):
            whole.setdefault(member.name, []).append(piece)
    for i, n in enumerate(sizes):
        assert torch.cat([torch.empty(0), *whole.get(f"p{i}", [])]).tolist() == [i + 1.0] * n


@given(SIZES, st.data())
def test_gaps_are_all_but_local_gradients(sizes: list[int], data: st.DataObject) -> None:
    group = group_of(sizes, 3, 0)
    for member in group.members:
        member.arrived, member.kept = data.draw(st.tuples(st.booleans(), st.booleans()))
    full = full_of(group)
    group.clear_gaps(full)
    for member, value in zip(group.members, range(1, 6), strict=False):
        expected = float(value) if member.arrived or member.kept else 0.0
        assert member.of(full).tolist() == [expected] * member.numel
    assert full.sum() == sum(m.of(full).sum() for m in group.members), "padding is zero"


def test_a_unit_is_complete_when_all_that_is_used_has_come() -> None:
    group = group_of([3, 4], 2, 0)
    first, second = group.members
    assert not group.unit.complete
    first.arrived = True
    assert not group.unit.complete
    second.used = False
    assert group.unit.complete
    second.kept, first.arrived = True, False
    assert not group.unit.complete, "what no_sync kept is no gradient of this backward"


def test_the_optimizer_updates_the_master_where_there_is_one() -> None:
    group = group_of([3], 1, 0)
    assert group.values is group.shard
    group.master = torch.zeros(3)
    assert group.values is group.master


def test_legal_moves() -> None:
    unit = Unit("u", [])
    for state in (UnitState.GATHERING, UnitState.LIVE, UnitState.SHARDED):
        unit.move(state)
    with pytest.raises(AssertionError, match="unit 'u' cannot go from sharded to live"):
        unit.move(UnitState.LIVE)


def test_groups_and_elements() -> None:
    trained, frozen = group_of([3], 2, 0), group_of([20], 2, 0)
    frozen.trained = False
    unit = Unit("u", [], [trained, frozen])
    assert unit.trained == [trained]
    assert unit.frozen and not trained.unit.frozen
    assert unit.numel == trained.layout.numel + frozen.layout.numel
