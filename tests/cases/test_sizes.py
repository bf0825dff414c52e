"""Odd sizes and buckets: SIZ-01 and SIZ-03 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import clip_grad_norm_, inspect, shard
from tests.zero.plain import Task, fresh, numbers, same, whole


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(5, 7, bias=False)
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight(x)[:, :3] + self.bias


def groups(model: Small) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": [model.bias], "lr": 0.1}, {"params": [model.weight.weight], "lr": 0.01}])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_SIZ_01_a_group_smaller_than_the_number_of_ranks(stage: int) -> None:
    task = Task(Small, lambda m, s, r: m(numbers(3, 5, step=s, rank=r)).square().mean())

    def body(mesh: Mesh) -> None:
        model = fresh(task)
        optimizer = groups(model)
        shard(model, optimizer, mesh["dp"], stage=stage)
        alone = fresh(task)
        judge = groups(alone)
        for step in range(3):
            task.loss(model, step, mesh["dp"].index).backward()
            norm = clip_grad_norm_(optimizer, 0.05)
            optimizer.step()
            optimizer.zero_grad()
            (sum(task.loss(alone, step, rank) for rank in range(4)) / 4).backward()
            want = nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            judge.step()
            judge.zero_grad()
            assert abs(norm.item() - want.item()) <= 1e-6 and want > 0.05
        same(whole(model), {name: p.detach() for name, p in alone.named_parameters()}, within=1e-6)

    run_ranks({"dp": 4}, body)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_SIZ_03_what_is_reduced_together_does_not_change_the_sum(stage: int) -> None:
    """There is no bucket size here: what is sent together is a unit. All cuts into units reduce every weight."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 3))

    task = Task(make, lambda m, s, r: m(numbers(4, 8, step=s, rank=r)).square().mean())

    def body(mesh: Mesh, cut: str) -> dict[str, Tensor]:
        model = fresh(task)
        units = {"one per layer": None, "all in one": [model], "of a class": [nn.Linear], "one given": [model[1]]}[cut]
        shard(model, lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage, units=units)
        task.loss(model, 0, mesh["dp"].index).backward()
        return {name: inspect(model, name, "grad") for name, _ in model.named_parameters()}

    alone = fresh(task)
    (sum(task.loss(alone, 0, rank) for rank in range(2)) / 2).backward()
    want = {name: p.grad for name, p in alone.named_parameters()}
    first = run_ranks({"dp": 2}, body, "one per layer")[0]
    same(first, want, within=1e-6)
    for cut in ("all in one", "of a class", "one given"):
        for got in run_ranks({"dp": 2}, body, cut):
            same(got, first)
