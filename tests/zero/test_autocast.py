"""Autocast at stage 3 works, and says once what its copies of the weights cost."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.plain import Task, at_rest, fresh, numbers, plain, same, whole


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(numbers(3, 6, step=step, rank=rank)).float().square().mean()


TASK = Task(layers, loss)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_equals_a_plain_process_and_warns_once_at_stage_3(stage: int) -> None:
    want = plain(TASK, 2)

    def body(mesh: Mesh) -> None:
        model, optimizer = shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=stage)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(TASK.steps):
                loss(model, step, mesh["dp"].index).backward()
                at_rest(model)
                optimizer.step()
                optimizer.zero_grad()
        said = [str(w.message) for w in caught]
        if stage < 3:
            assert said == []
        else:
            assert len(said) == 1 and "autocast at stage 3" in said[0]
            assert f"up to {2 * (6 * 6 + 6 + 6 * 2 + 2)} bytes" in said[0]
        same(whole(model), want)

    run_ranks({"dp": 2}, body)
