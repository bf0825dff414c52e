"""Clipping: CLP-05 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, clip_grad_norm_, inspect, shard


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x).sum()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("compute", "within"), [("fp32", 1e-5), ("bf16", 1e-2), ("fp16", 1e-2)])
def test_CLP_05_the_reported_norm_is_the_one_before_clipping(stage: int, compute: str, within: float) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = shard(
            Vector(),
            lambda p: torch.optim.SGD(p, lr=1.0),
            mesh["dp"],
            stage=stage,
            precision=Precision(compute=compute),
        )
        model(torch.tensor([3.0, 4.0])).backward()
        norm = clip_grad_norm_(optimizer, 1.0)
        assert norm.item() == 5.0
        optimizer.step()
        assert abs(inspect(model, "w").float().norm().item() - 1.0) <= within

    run_ranks({"dp": 2}, body)
    assert clip_grad_norm_.__doc__ is not None and "norm before clipping" in clip_grad_norm_.__doc__
