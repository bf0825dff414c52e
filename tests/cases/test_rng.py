"""Random state: RNG-01 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard


class Dropping(nn.Module):
    def __init__(self, checkpointed: bool | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.layers(x) if self.checkpointed is None else checkpoint(self.layers, x, use_reentrant=self.checkpointed)
        )


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_RNG_01_dropout_inside_activation_checkpointing(stage: int, reentrant: bool) -> None:
    """The checkpoints are torch's: their preserve_rng_state is what keeps or loses the mask."""

    def body(mesh: Mesh, checkpointed: bool | None) -> dict[str, Tensor | None]:
        torch.manual_seed(1)
        model, _ = shard(Dropping(checkpointed), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
        torch.manual_seed(1)
        model(torch.ones(4, 16, requires_grad=True)).sum().backward()
        return {name: inspect(model, name, "grad") for name, _ in model.named_parameters()}

    (got,) = run_ranks({"dp": 1}, body, reentrant)
    (want,) = run_ranks({"dp": 1}, body, None)
    for name in want:
        a, b = got[name], want[name]
        assert a is not None and b is not None and torch.equal(a, b) and b.abs().sum() > 0, name
