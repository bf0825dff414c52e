"""torch.compile: works where weights stay, refused by name where they come and go."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.plain import Task, Weights, fresh, numbers, plain, same, whole


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


TASK = Task(layers, loss)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_compile(stage: int) -> None:
    torch._dynamo.reset()

    def body(mesh: Mesh) -> Weights | None:
        model, optimizer = shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=stage)
        compiled = torch.compile(model, backend="eager")
        if stage == 3:
            with pytest.raises(RuntimeError, match=r"torch\.compile of .* at stage 3"):
                loss(compiled, 0, mesh["dp"].index)
            return None
        for step in range(TASK.steps):
            loss(compiled, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(TASK, 2)
    for got in run_ranks({"dp": 2}, body):
        if got is not None:
            same(got, want)
