"""Modules of every shape: MOD-01, MOD-03 without save and load, MOD-07, MOD-09, MOD-11 of cases.yaml."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import FreedParameterError, gathered, inspect, shard
from tests.zero.plain import Task, at_rest, check, fresh, numbers, sharding, tokens

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def sgd(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1)  # type: ignore[attr-defined]


class Towers(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.encoder, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (checkpoint(self.encoder, z, use_reentrant=self.reentrant) for z in (x, y))
        return a.sum() + b.square().sum()


@STAGES
@pytest.mark.parametrize("reentrant", [False, True])
def test_MOD_01_the_same_encoder_applied_to_two_inputs(stage: int, reentrant: bool) -> None:
    def loss(model: nn.Module, step: int, rank: int) -> Tensor:
        x, y = (numbers(3, 4, step=step + at, rank=rank).requires_grad_() for at in (0, 50))
        return model(x, y)

    task = Task(lambda: Towers(reentrant), loss, sgd)

    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(task), sgd, mesh["dp"], stage=stage)
        loss(model, 0, mesh["dp"].index).backward()
        at_rest(model)
        alone = fresh(task)
        (sum(loss(alone, 0, rank) for rank in range(2)) / 2).backward()
        for name, p in alone.named_parameters():
            got = inspect(model, name, "grad")
            scale = p.grad.abs().max()
            assert got is not None and (got - p.grad).abs().max() <= 1e-6 * max(1.0, scale), name

    run_ranks({"dp": 2}, body)


class Nested(nn.Module):
    """A list of parameters that two nested modules read as well."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(4) * i) for i in (1, 2))
        self.inner = Inner(self.gains)
        self.other = Inner(self.gains)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.old = nn.utils.weight_norm(nn.Conv1d(4, 4, 3))
        self.new = parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.new(torch.tanh(self.old(x))).mean(-1)
        x = self.inner(x) + self.other(x * self.gains[0])
        return self.orthogonal(x)


class Inner(nn.Module):
    def __init__(self, gains: nn.ParameterList) -> None:
        super().__init__()
        self.gains = gains

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gains[0] + self.gains[1]


@STAGES
def test_MOD_03_weight_normalisation_and_parametrizations(stage: int) -> None:
    task = Task(Nested, lambda m, s, r: m(numbers(2, 4, 9, step=s, rank=r)).square().mean(), sgd, steps=5)
    check(task, stages=[stage], within=1e-6)

    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(task), sgd, mesh["dp"], stage=stage)
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in fresh(task).named_parameters()]
        with gathered(model):
            assert list(model.state_dict()) == list(fresh(task).state_dict())
            assert model.new.weight.shape == (4, 4, 3)
        assert not any(name.endswith((".old.weight", "new.weight")) for name, _ in model.named_parameters())

    run_ranks({"dp": 2}, body)


@STAGES
def test_MOD_07_weights_used_directly_in_the_loss(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        task = Task(lambda: nn.Linear(4, 4), lambda *_: torch.tensor(0.0))
        model, _ = shard(fresh(task), sgd, mesh["dp"], stage=stage)
        x = numbers(3, 4, step=0, rank=0)
        value = F.mse_loss(model(x), torch.zeros(3, 4))
        with gathered(model, "weight"):
            value = value + 0.1 * model.weight.square().sum()
        value.backward()
        at_rest(model)
        alone = fresh(task)
        F.mse_loss(alone(x), torch.zeros(3, 4)).backward()
        got = inspect(model, "weight", "grad")
        assert got is not None and (got - (alone.weight.grad + 0.2 * alone.weight)).abs().max() <= 1e-6
        if stage == 3:
            with pytest.raises(FreedParameterError, match=r"'weight'[\s\S]*gathered\(model, 'weight'\)"):
                model.weight.square().sum()

    run_ranks({"dp": 2}, body)


@STAGES
def test_MOD_09_editing_gathered_weights(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        task = Task(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), lambda *_: torch.tensor(0.0))
        model, _ = shard(fresh(task), sgd, mesh["dp"], stage=stage)
        names = ("0.weight", "1.weight")
        edited = pytest.raises(RuntimeError, match=r"'1\.weight' was edited.*write_from")
        with edited, gathered(model, *names), torch.no_grad():
            model[1].weight[0, :2] = 5.0
        model, _ = shard(fresh(task), sgd, mesh["dp"], stage=stage)
        with gathered(model, *names, write_from=0), torch.no_grad():
            if mesh["dp"].index == 0:
                model[1].weight[0, :2] = 5.0
        alone = fresh(task)
        with torch.no_grad():
            alone[1].weight[0, :2] = 5.0
        x = numbers(3, 4, step=0, rank=0)
        assert torch.equal(model(x), alone(x))

    run_ranks({"dp": 2}, body)


class Tokens(nn.Module):
    def __init__(self, checkpointed: bool, frozen: bool) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(1000, 64), nn.Linear(64, 64)
        self.embed.weight.requires_grad_(not frozen)
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        if not self.checkpointed:
            return self.layer(self.embed(ids))
        x = checkpoint(self.embed, ids, use_reentrant=False)
        return checkpoint(self.layer, x, use_reentrant=False)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_MOD_11_weights_whose_inputs_need_no_gradient_are_released(checkpointed: bool, frozen: bool) -> None:
    def body(mesh: Mesh) -> None:
        torch.manual_seed(0)
        model, optimizer = shard(Tokens(checkpointed, frozen), sgd, mesh["dp"], stage=3)
        pool = sharding(model).pool
        for step in range(3):
            out = model(tokens(1000, 2, 5, step=step, rank=mesh["dp"].index))
            assert pool.lent_bytes == 0
            out.square().sum().backward()
            assert pool.lent_bytes == 0
            at_rest(model)
            optimizer.step()
            assert pool.lent_bytes == 0 and pool.lost == 0
        assert pool.peak_bytes >= 256000

    run_ranks({"dp": 2}, body)
