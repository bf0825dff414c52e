"""The net that tests of `shard` itself use, and how they see it refused."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.plain import numbers

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


def refused(
    model: nn.Module, optimizer: object, match: str, stage: int = 3, error: type = ValueError, **options: object
) -> None:
    def body(mesh: Mesh) -> None:
        with pytest.raises(error, match=match):
            shard(model, optimizer, mesh["dp"], stage=stage, **options)  # type: ignore[arg-type]

    run_ranks({"dp": 1}, body)
