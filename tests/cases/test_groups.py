"""Parameter groups: GRP-01 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        return (self.a + self.b).sum()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_GRP_01_groups_keep_their_own_rate_and_decay(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model = Two()
        optimizer = torch.optim.SGD(
            [{"params": [model.a], "lr": 0.1}, {"params": [model.b], "lr": 0.01, "weight_decay": 0.5}]
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        shard(model, optimizer, mesh["dp"], stage=stage)
        values = []
        for _ in range(2):
            model().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            values.append([inspect(model, name).item() for name in ("a", "b")])
        assert values[0] == pytest.approx([0.9, 0.985], abs=1e-7)
        assert values[1] == pytest.approx([0.9 - 0.05, 0.985 - 0.005 * (1 + 0.5 * 0.985)], abs=1e-6)

    run_ranks({"dp": 2}, body)
