from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import gathered, inspect, shard
from shardlab.zero.optimizer import ELEMENTWISE
from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import Recipe, copies, differing
from tests.zero.training import lockstep

RECIPE = Recipe("mlp", steps=2)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_elementwise_optimizers_keep_their_bits_on_pieces(kind: type[Optimizer], stage: int) -> None:
    recipe = Recipe("mlp", kind.__name__, (("lr", 1e-2),), steps=4)
    expected = rank_ordered(recipe, 3)
    assert [differing(a, b) for a, b in zip(lockstep(recipe, 3, stage), expected, strict=True)] == [[]] * 3


@pytest.mark.parametrize("option", ["foreach", "fused", "amsgrad", "maximize"])
def test_its_options_stay(option: str) -> None:
    recipe = Recipe("gpt", "adamw", ((option, True),), steps=3)
    expected = rank_ordered(recipe, 3)
    assert [differing(a, b) for a, b in zip(lockstep(recipe, 3, 3), expected, strict=True)] == [[]] * 3


class Scalars(nn.Module):
    """Scalars, an empty parameter, a row: shapes that are easily taken for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor([0.5]))
        self.empty, self.row = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.linspace(0, 1, 5).reshape(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.row).sum() * self.scale + self.shift.sum() + self.empty.sum()


def an_epoch_later(mesh: Mesh, stage: int, kind: type[Optimizer]) -> list[Any]:
    """Three steps alone, then three sharded; what a plain process has after six, and what this one has."""
    results = []
    for sharded in (False, True):
        model = Scalars()
        optimizer = kind(model.parameters(), lr=0.1)
        for step in range(6):
            if step == 3 and sharded:
                model, optimizer = shard(model, optimizer, mesh["dp"], stage=stage)
            model(torch.arange(5.0) + step).backward()  # the same on every rank: the mean is each
            optimizer.step()
            optimizer.zero_grad()
        with gathered(model) if sharded else torch.no_grad():
            results.append(copies(model.named_parameters()))
    return results


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.Adadelta])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_state_that_it_already_has_is_cut(stage: int, kind: type[Optimizer]) -> None:
    for plain, ours in run_ranks({"dp": 2}, an_epoch_later, stage, kind):
        assert [name for name in plain if not torch.equal(plain[name], ours[name])] == []


def held(mesh: Mesh, stage: int) -> dict[str, Any]:
    model = RECIPE.build()
    given = torch.optim.AdamW(model.parameters(), lr=1e-2)
    group = given.param_groups[0]
    schedule = torch.optim.lr_scheduler.StepLR(given, 1, gamma=0.5)
    _, optimizer = shard(model, given, mesh["dp"], stage=stage)
    seen = {"same": optimizer is given and optimizer.param_groups[0] is group, "pieces": list(group["params"])}
    for step in range(2):
        RECIPE.loss(model, RECIPE.batch(step, 0, mesh.rank)).backward()
        optimizer.step()
        schedule.step()
    return {**seen, "lr": group["lr"], "state": len(optimizer.state)}


@pytest.mark.parametrize("stage", [1, 3])
def test_an_instance_is_edited_in_place(stage: int) -> None:
    for seen in run_ranks({"dp": 3}, held, stage):
        assert seen["same"]
        assert seen["lr"] == 0.0025
        assert seen["state"] == len(seen["pieces"])
        assert all(piece.dim() == 1 and piece.numel() > 0 for piece in seen["pieces"])


def test_pieces_of_all_ranks_are_the_model() -> None:
    pieces = [seen["pieces"] for seen in run_ranks({"dp": 3}, held, 3)]
    assert sum(p.numel() for rank in pieces for p in rank) == sum(p.numel() for p in RECIPE.build().parameters())


def owns_nothing(mesh: Mesh, stage: int) -> tuple[int, list[float]]:
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = shard(model, lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    with gathered(model):
        return len(optimizer.param_groups[0]["params"]), model.weight.flatten().tolist()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_may_own_nothing(stage: int) -> None:
    results = run_ranks({"dp": 4}, owns_nothing, stage)
    assert [pieces for pieces, _ in results] == [1, 0, 0, 0]
    for _, weight in results:
        assert weight == pytest.approx([0.9] * 3)


class Halving(torch.optim.SGD):
    """Elementwise, but of a class that nobody knows."""


def step_with(mesh: Mesh, make: Callable[[Any], Any], stage: int) -> bool:
    """One step; whether it has moved the first parameter."""
    model, optimizer = shard(RECIPE.build(), make, mesh["dp"], stage=stage)
    name = next(name for name, _ in model.named_parameters())
    before = inspect(model, name)
    RECIPE.loss(model, RECIPE.batch(0, 0, 0)).backward()
    optimizer.step()
    after = inspect(model, name)
    assert before is not None and after is not None
    return not torch.equal(before, after)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS, Halving])
def test_others_are_refused_by_name(kind: type[Optimizer], stage: int) -> None:
    with pytest.raises(ValueError, match=rf"optimizer {kind.__name__} at stage {stage}: it is not known to be element"):
        run_ranks({"dp": 2}, step_with, kind, stage)


def test_a_class_may_say_that_it_is_elementwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Halving, "shardlab_elementwise", True, raising=False)
    assert run_ranks({"dp": 2}, step_with, Halving, 3) == [True, True]


def test_whole_tensors_are_there_at_stage_0() -> None:
    assert run_ranks({"dp": 2}, step_with, torch.optim.Adafactor, 0) == [True, True]


def drop_last(params: Any) -> Optimizer:
    return torch.optim.SGD(list(params)[:-1], lr=0.1)


def add_stranger(params: Any) -> Optimizer:
    return torch.optim.SGD([*params, nn.Parameter(torch.ones(2, 7))], lr=0.1)


def test_groups_that_do_not_fit_the_model() -> None:
    with pytest.raises(ValueError, match=r"parameter 'layers.4.bias' requires a gradient but is in no optimizer group"):
        run_ranks({"dp": 2}, step_with, drop_last, 3)
    with pytest.raises(ValueError, match=r"1 parameters that are not the model's, the first of shape \(2, 7\)"):
        run_ranks({"dp": 2}, step_with, add_stranger, 3)
    with pytest.raises(TypeError, match="optimizer is str; give a torch optimizer or a function"):
        run_ranks({"dp": 2}, step_with, "adamw", 3)
    with pytest.raises(TypeError, match=r"factory returned list, expected a torch.optim.Optimizer"):
        run_ranks({"dp": 2}, step_with, list, 3)


def two_steps_unused(mesh: Mesh) -> float:
    """A parameter that only two of four steps use: its step count is its own."""
    model = nn.ModuleDict({"always": nn.Linear(1, 1), "late": nn.Linear(1, 1, bias=False)})
    model.forward = lambda x, late: model["always"](x) + (model["late"](x) if late else 0)  # type: ignore[method-assign]
    for p in model.parameters():
        nn.init.ones_(p)
    model, optimizer = shard(model, lambda p: torch.optim.Adam(p, lr=0.1), mesh["dp"], stage=3)
    for step in range(4):
        model(torch.ones(1), step >= 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert inspect(model, "late.weight", "step") == 2
    value = inspect(model, "late.weight")
    assert value is not None
    return value.item()


def test_step_counts_are_those_of_each_parameter() -> None:
    assert run_ranks({"dp": 2}, two_steps_unused) == [pytest.approx(0.8, abs=1e-6)] * 2
