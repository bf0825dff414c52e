"""Clipping rounded more than a plain process does.

The norm of fp64 gradients was rounded to fp32, which put 6e-8 of relative error into every clipped gradient of an fp64
model: 1e-9 in its weights after five AdamW steps, where rounding alone gives 1e-16. And the factor was rounded to the
dtype of the gradients: bf16 gradients were scaled by up to 0.4 % too much.
"""

import pytest
import torch
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import Precision, clip_grad_norm_, inspect, shard


def clipped(mesh: Mesh, dtype: torch.dtype, precision: Precision | None) -> tuple[torch.Tensor, torch.Tensor]:
    """One gradient, (3, 4, 0), of norm 5, clipped to 1.3."""
    model = nn.Linear(3, 1, bias=False, dtype=dtype)
    nn.init.ones_(model.weight)
    model, optimizer = shard(model, torch.optim.AdamW, mesh["dp"], stage=3, precision=precision)
    model(torch.tensor([3.0, 4.0, 0.0], dtype=dtype)).sum().backward()
    norm = clip_grad_norm_(optimizer, 1.3)
    grad = inspect(model, "weight", "grad")
    assert grad is not None
    return norm, grad


def test_the_norm_of_fp64_gradients_is_fp64() -> None:
    for norm, grad in run_ranks({"dp": 2}, clipped, torch.float64, None):
        assert norm.dtype is torch.float64
        assert grad.norm().item() == pytest.approx(1.3 * 5 / (5 + 1e-6), rel=1e-15)


def test_the_factor_is_not_rounded_to_bf16() -> None:
    precision = Precision(compute="bf16", accumulate="bf16")
    for norm, grad in run_ranks({"dp": 2}, clipped, torch.float32, precision):
        assert norm.dtype is torch.float32
        factor = torch.tensor(1.3) / (norm + 1e-6)  # 0.26: bf16 has 0.2598 for it
        assert torch.equal(grad, (torch.tensor([[3.0, 4.0, 0.0]]) * factor).bfloat16())
