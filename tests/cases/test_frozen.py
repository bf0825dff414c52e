"""Frozen weights: FRZ-03, FRZ-05, FRZ-07 of cases.yaml, which names the reports behind them."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, inspect, shard
from tests.zero.plain import Task, check, fresh, numbers, plain, same, sharding, whole


def trained(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in params if p.requires_grad]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("compute", [None, "bf16"])
def test_FRZ_03_frozen_weights_cost_no_optimizer_state_and_no_gradient_buffer(stage: int, compute: str | None) -> None:
    def body(mesh: Mesh) -> tuple[int, int, int, int]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10))
        model[0].requires_grad_(False)
        precision = None if compute is None else Precision(compute=compute)
        model, optimizer = shard(
            model, lambda p: torch.optim.Adam(trained(p)), mesh["dp"], stage=stage, precision=precision
        )
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        groups = [group for unit in sharding(model).units for group in unit.groups]
        moments = sum(s[key].nbytes for s in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))
        master = sum(group.master.nbytes for group in groups if group.master is not None)
        accumulated = sum(group.acc.nbytes for group in groups if group.acc is not None)
        frozen = sum(x.numel() for g in groups if not g.trained for x in (g.master, g.sending, g.acc) if x is not None)
        return moments, master, accumulated, frozen

    found = run_ranks({"dp": 2}, body)
    pad = 2 * 2 * 64  # each rank may pad each of the two tensors up to 64 bytes
    assert sum(f[0] for f in found) == 8 * 650
    assert sum(f[3] for f in found) == 0
    assert 4 * 650 <= sum(f[2] for f in found) <= 4 * 650 + pad
    if compute is None:
        assert sum(f[1] for f in found) == 0
    else:
        assert 4 * 650 <= sum(f[1] for f in found) <= 4 * 650 + pad


class BiasOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        for layer in self.layers:
            layer.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def squares(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


def test_FRZ_05_bias_only_training_with_checkpoints_at_stage_3() -> None:
    task = Task(BiasOnly, squares, lambda p: torch.optim.SGD(trained(p), lr=0.1))
    check(task, stages=[3], within=1e-6)

    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(task), task.optimizer, mesh["dp"], stage=3, precision=Precision(compute="bf16"))
        squares(model, 0, mesh["dp"].index).backward()
        alone = fresh(task)
        (sum(squares(alone, 0, rank) for rank in range(2)) / 2).backward()
        for name, p in alone.named_parameters():
            got = inspect(model, name, "grad")
            if p.requires_grad:
                assert got is not None and ((got - p.grad).norm() / p.grad.norm()).item() <= 1e-2
            else:
                assert got is None
        trained_names = {member.name for group in sharding(model).trained_groups for member in group.members}
        assert trained_names == {"layers.0.bias", "layers.1.bias"}

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_FRZ_07_changing_what_trains_is_an_error_that_names_the_parameter(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        model[1].requires_grad_(False)
        model[2].requires_grad_(False)
        model, optimizer = shard(model, lambda p: torch.optim.SGD(trained(p), lr=0.1), mesh["dp"], stage=stage)
        for _ in range(2):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model[0].requires_grad_(False)
        model[1].requires_grad_(True)
        model(torch.ones(2, 4)).square().sum().backward()
        with pytest.raises(RuntimeError, match=r"'0\.weight': requires_grad was True .* now False"):
            optimizer.step()

    torch.manual_seed(0)
    run_ranks({"dp": 1}, body)


def test_FRZ_07_freezing_between_steps_and_back_is_no_change() -> None:
    """As a GAN does with its critic while the generator learns."""
    task = Task(BiasOnly, squares, lambda p: torch.optim.SGD(trained(p), lr=0.1))

    def body(mesh: Mesh) -> None:
        model, optimizer = shard(fresh(task), task.optimizer, mesh["dp"], stage=3)
        for step in range(task.steps):
            model.layers[0].bias.requires_grad_(False)
            squares(model, 90, mesh["dp"].index).backward()
            optimizer.zero_grad()
            model.layers[0].bias.requires_grad_(True)
            squares(model, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
        same(whole(model), plain(task, 2))

    run_ranks({"dp": 2}, body)
