"""A unit that the last backward did not use is sent at once, from inside the call that takes the gradient before it.

That call still held a view of the send buffer it had copied into, so the buffer came back to the pool with a second
pointer to its memory and was given up: every step after the first allocated it anew.
"""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from shardlab.zero.sharding import sharding_of


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def train(mesh: Mesh, stage: int) -> int:
    torch.manual_seed(0)
    model, optimizer = shard(Skips(), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return sharding_of(model).pool.lost


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_buffer_before_an_unused_unit_comes_back(stage: int) -> None:
    assert run_ranks({"dp": 2}, train, stage) == [0, 0]
