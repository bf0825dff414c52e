"""torch.compile: CMP-01 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard
from tests.zero.plain import numbers


class Dropping(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(16, 16), nn.Dropout(p), nn.Linear(16, 1)

    def _run(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._run, x, use_reentrant=False)


@pytest.mark.filterwarnings("ignore")
def test_CMP_01_compiled_with_dropout_and_checkpoints() -> None:
    torch._dynamo.reset()

    def losses(mesh: Mesh, p: float, compiled: bool, steps: int) -> list[float]:
        torch.manual_seed(1)
        model, optimizer = shard(Dropping(p), lambda q: torch.optim.SGD(q, lr=0.01), mesh["dp"], stage=1)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        found = []
        for step in range(steps):
            x = numbers(1, 16, step=step, rank=0)
            loss = run(x).square().mean() if p == 0 else run(x).sum()
            loss.backward()
            if p:  # loss = gradient of the first bias . (W x + b) + last bias, if both used one mask
                slope, hidden = inspect(model, "first.bias", "grad"), model.first(x)[0]
                assert slope is not None and 0 < (slope == 0).sum() < 16
                assert torch.allclose(loss, slope @ hidden + model.last.bias[0], atol=1e-5)
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        return found

    run_ranks({"dp": 1}, losses, 0.5, True, 1)
    (compiled,) = run_ranks({"dp": 1}, losses, 0.0, True, 50)
    (plain,) = run_ranks({"dp": 1}, losses, 0.0, False, 50)
    assert compiled == pytest.approx(plain, rel=1e-5)
