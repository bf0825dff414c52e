"""Accumulation: the hand-marked part of ACC-02, and ACC-05, of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, no_sync, shard
from tests.zero.plain import Task, fresh, numbers, sharding, whole

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, factor: float) -> Tensor:
        return (self.w * factor).sum()


@STAGES
def test_ACC_02_backwards_before_a_step_are_summed(stage: int) -> None:
    """The user marks the boundary by calling step; no division was asked for."""

    def body(mesh: Mesh) -> float:
        model, optimizer = shard(One(), lambda p: torch.optim.SGD(p, lr=1.0), mesh["dp"], stage=stage)
        for factor in (1.0, 2.0, 6.0):
            model(factor).backward()
        optimizer.step()
        return inspect(model, "w").item()

    assert run_ranks({"dp": 2}, body) == [-9.0, -9.0]


@STAGES
def test_ACC_05_no_synchronisation_where_gradients_are_partitioned(stage: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))

    task = Task(
        make, lambda m, s, r: m(numbers(3, 6, step=s, rank=r)).square().mean(), lambda p: torch.optim.SGD(p, lr=0.1)
    )

    def body(mesh: Mesh) -> None:
        model, optimizer = shard(fresh(task), task.optimizer, mesh["dp"], stage=stage)
        rank = mesh["dp"].index
        if stage >= 2:
            with pytest.raises(ValueError, match=rf"stage {stage}.*Accumulation works without it"), no_sync(model):
                pass
            return
        sent = []
        reducer = sharding(model).reducer
        send = reducer._send
        reducer._send = lambda unit: (sent.append(unit), send(unit))  # type: ignore[method-assign, assignment, func-returns-value]
        with no_sync(model):
            for micro_batch in range(3):
                task.loss(model, micro_batch, rank).backward()
        assert sent == []
        task.loss(model, 3, rank).backward()
        assert len(sent) == 2
        optimizer.step()
        alone = fresh(task)
        (sum(task.loss(alone, s, r) for s in range(4) for r in range(2)) / 2).backward()
        task.optimizer(alone.parameters()).step()
        for name, p in alone.named_parameters():
            assert (whole(model)[name] - p).abs().max() <= 1e-6, name

    run_ranks({"dp": 2}, body)
