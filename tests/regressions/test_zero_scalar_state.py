"""Optimizer state of a scalar parameter was not cut.

State of the parameter's shape was told from step counts by having a dimension. A scalar's own state has none, so its
piece, one element long, met a momentum without dimensions: the first step raised "output with shape [] doesn't match
the broadcast shape [1]". Adagrad makes its state when it is made: no model with a scalar could be trained with it.
"""

import pytest
import torch
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import gathered, shard


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def train(mesh: Mesh, stage: int) -> float:
    model, optimizer = shard(Scale(), lambda p: torch.optim.Adagrad(p, lr=0.5), mesh["dp"], stage=stage)
    model(torch.tensor(3.0)).backward()
    optimizer.step()
    with gathered(model):
        return model.scale.item()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adagrad_trains_a_scalar(stage: int) -> None:
    assert run_ranks({"dp": 2}, train, stage) == [1.5, 1.5]
