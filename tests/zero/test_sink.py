"""Gradients that no hook sees, such as those of a split backward, given by hand."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import grad_sink, shard
from tests.zero.plain import Task, Weights, fresh, numbers, same, whole

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(6, 5), nn.Parameter(torch.tensor(1.5)), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) * self.gain)


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


def sgd(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


@STAGES
def test_gradients_given_by_hand_through_the_sink(stage: int) -> None:
    """What a split backward, which fires no hooks, would use."""

    def body(mesh: Mesh) -> Weights:
        task = Task(Net, loss, sgd)
        model, optimizer = shard(fresh(task), task.optimizer, mesh["dp"], stage=stage)
        alone = fresh(task)
        sink = grad_sink(model)
        for micro_batch in range(2):
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                sink.add(p, torch.full_like(q, 1.0 + mesh["dp"].index + micro_batch), micro_batch)
            sink.end(micro_batch)
        with pytest.raises(ValueError, match="not a trained one"):
            sink.add(nn.Parameter(torch.ones(2)), torch.ones(2), 0)
        with pytest.raises(ValueError, match=r"'gain' has shape \(\).*\(2,\)"):
            sink.add(model.gain, torch.ones(2), 0)
        optimizer.step()
        return whole(model)

    want = {name: p.detach() - 0.1 * 4.0 for name, p in fresh(Task(Net, loss)).named_parameters()}
    for got in run_ranks({"dp": 2}, body):
        same(got, want, within=1e-6)
