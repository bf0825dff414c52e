"""Gradients that are not finite: FIN-03 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import NonFiniteGradientError, Precision, inspect, shard
from tests.zero.plain import numbers, sharding

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def states(model: nn.Module) -> dict[tuple[str, str], Tensor]:
    kinds = ("param", "master", "exp_avg", "exp_avg_sq", "step")
    found = {(name, kind): inspect(model, name, kind) for name, _ in model.named_parameters() for kind in kinds}
    assert all(x is not None for x in found.values())
    return {key: x for key, x in found.items() if x is not None}


def spoiled(mesh: Mesh, stage: int, compute: str | None, policy: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Two good steps, then a backward in which rank 1 alone has one infinite gradient element."""
    torch.manual_seed(0)
    precision = Precision(compute=compute, non_finite=policy)  # type: ignore[arg-type]
    model, optimizer = shard(
        nn.Linear(4, 4), lambda p: torch.optim.Adam(p, lr=0.01), mesh["dp"], stage=stage, precision=precision
    )
    rank, spoil = mesh["dp"].index, [False]

    def hook(grad: Tensor) -> Tensor:
        if not spoil[0]:
            return grad
        grad = grad.clone()
        grad[2, 1] = torch.inf
        return grad

    model.weight.register_hook(hook)
    for step in range(3):
        spoil[0] = step == 2 and rank == 1
        model(numbers(3, 4, step=step, rank=rank)).float().square().mean().backward()
        if step < 2:
            optimizer.step()
            optimizer.zero_grad()
    spoil[0] = False
    return model, optimizer


@STAGES
@pytest.mark.parametrize("compute", [None, "bf16"])
@pytest.mark.parametrize("cleared", [True, False])
def test_FIN_03_all_ranks_skip_the_step_together(stage: int, compute: str | None, cleared: bool) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = spoiled(mesh, stage, compute, "skip")
        before = states(model)
        with pytest.warns(UserWarning, match=r"'weight' is not finite.*skipped on all ranks"):
            optimizer.step()
        if cleared:
            optimizer.zero_grad()
        after = states(model)
        assert all(torch.equal(after[key], before[key]) for key in before)
        assert sharding(model).step.skipped == 1
        model(numbers(3, 4, step=3, rank=mesh["dp"].index)).float().square().mean().backward()
        optimizer.step()
        trained = states(model)
        assert not torch.equal(trained["weight", "param"], after["weight", "param"])
        assert trained["weight", "step"] == after["weight", "step"] + 1
        assert all(x.isfinite().all() for x in trained.values())

    run_ranks({"dp": 2}, body)


@STAGES
def test_FIN_03_the_error_and_the_switch_are_documented(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = spoiled(mesh, stage, None, "raise")
        before = states(model)
        with pytest.raises(NonFiniteGradientError, match="'weight'"):
            optimizer.step()
        assert all(torch.equal(x, before[key]) for key, x in states(model).items())
        model, optimizer = spoiled(mesh, stage, None, "ignore")
        optimizer.step()
        assert inspect(model, "weight").isnan().any()

    run_ranks({"dp": 2}, body)
    assert Precision.__doc__ is not None and '"ignore" (the update then spreads it)' in Precision.__doc__
