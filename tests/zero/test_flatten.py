"""Which parameters lie in which flat buffer, and that moving them there loses nothing."""

import pytest
import torch
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero.flatten import flatten, settle
from shardlab.zero.pool import BufferPool
from shardlab.zero.precision import Precision
from shardlab.zero.stage0 import Stage0
from shardlab.zero.stage1 import Stage1
from shardlab.zero.stage3 import Stage3
from shardlab.zero.unit import UnitState


class Mixed(nn.Module):
    """Two dtypes, a frozen weight, a scalar and an empty matrix in one unit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(3, 5))
        self.rough = nn.Parameter(torch.randn(7).bfloat16())
        self.frozen = nn.Parameter(torch.randn(11), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.none = nn.Parameter(torch.empty(0, 4))


def groups(kind: type[Stage0], mesh: Mesh, precision: Precision | None = None):
    model = Mixed()
    stage = kind(mesh["dp"], BufferPool(torch.device("cpu")))
    (unit,) = flatten(model, None, stage, precision)
    return model, unit, stage


def test_one_group_for_each_dtype_and_for_what_is_frozen() -> None:
    def look(mesh: Mesh) -> list[tuple[list[str], torch.dtype, bool]]:
        _, unit, _ = groups(Stage3, mesh)
        return [([m.name for m in g.members], g.dtypes.compute, g.trained) for g in unit.groups]

    expected = [
        (["a", "scale", "none"], torch.float32, True),
        (["rough"], torch.bfloat16, True),
        (["frozen"], torch.float32, False),
    ]
    assert run_ranks({"dp": 2}, look) == [expected] * 2


def test_a_compute_dtype_joins_what_it_makes_equal() -> None:
    def look(mesh: Mesh) -> list[list[str]]:
        _, unit, _ = groups(Stage3, mesh, Precision(compute="bf16"))
        return [[m.name for m in g.members] for g in unit.groups]

    assert run_ranks({"dp": 2}, look)[0] == [["a", "rough", "scale", "none"], ["frozen"]]


@pytest.mark.parametrize(("kind", "trained", "frozen"), [(Stage0, 1, 1), (Stage1, 3, 1), (Stage3, 3, 3)])
def test_frozen_parameters_are_cut_at_stage_3_alone(kind: type[Stage0], trained: int, frozen: int) -> None:
    def look(mesh: Mesh) -> list[int]:
        _, unit, _ = groups(kind, mesh)
        return [g.layout.shards for g in unit.groups]

    assert run_ranks({"dp": 3}, look)[0] == [trained, trained, frozen]


@pytest.mark.parametrize("kind", [Stage0, Stage1, Stage3])
def test_the_shards_of_all_ranks_make_up_the_values(kind: type[Stage0]) -> None:
    before = {name: p.detach().clone() for name, p in Mixed().named_parameters()}

    def move(mesh: Mesh):
        model, unit, stage = groups(kind, mesh)
        settle([unit], stage)
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        return unit.state, shapes, [(g.index, g.shard.clone()) for g in unit.groups], unit.groups

    results = run_ranks({"dp": 3}, move)
    state, shapes, _, flat_groups = results[0]
    assert state is (UnitState.SHARDED if kind is Stage3 else UnitState.LIVE)
    assert shapes == {name: tuple(x.shape) for name, x in before.items()}
    for at, group in enumerate(flat_groups):
        whole = torch.cat([dict([result[2][at]])[i] for i, result in enumerate(results[: group.layout.shards])])
        for member in group.members:
            assert torch.equal(member.of(whole).view(before[member.name].shape), before[member.name]), member.name


def test_master_weights_are_taken_before_rounding() -> None:
    def move(mesh: Mesh) -> torch.Tensor:
        _, unit, stage = groups(Stage1, mesh, Precision(compute="bf16"))
        settle([unit], stage)
        return unit.groups[0].master.clone()

    whole = torch.cat(run_ranks({"dp": 2}, move))
    assert torch.equal(whole[:15].view(3, 5), Mixed().a.detach())
