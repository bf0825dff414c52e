"""Clipping rounded more than a plain process does.

The norm of fp64 gradients was rounded to fp32, which put 6e-8 of relative error into every clipped gradient of an fp64
model: 1e-9 in its weights after five AdamW steps, where rounding alone gives 1e-16. And the factor was rounded to the
dtype of the gradients: bf16 gradients were scaled by up to 0.4 % too much.
"""

import math

import pytest
import torch
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import Precision, clip_grad_norm_, inspect, shard


def clipped(mesh: Mesh, dtype: torch.dtype, precision: Precision | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient (1, 2 ... 16), whose norm is sqrt(1496), clipped to 10."""
    model = nn.Linear(16, 1, bias=False, dtype=dtype)
    nn.init.ones_(model.weight)
    model, optimizer = shard(model, torch.optim.AdamW, mesh["dp"], stage=3, precision=precision)
    model(torch.arange(1.0, 17.0, dtype=dtype)).sum().backward()
    norm = clip_grad_norm_(optimizer, 10.0)
    grad = inspect(model, "weight", "grad")
    assert grad is not None
    return norm, grad[0]


def test_the_norm_of_fp64_gradients_is_fp64() -> None:
    for norm, grad in run_ranks({"dp": 2}, clipped, torch.float64, None):
        assert norm.dtype is torch.float64
        assert norm.item() == math.sqrt(1496)
        assert grad[15].item() == pytest.approx(16 * 10 / (math.sqrt(1496) + 1e-6), rel=1e-15)


def test_the_factor_is_not_rounded_to_bf16() -> None:
    before = torch.arange(1.0, 17.0)
    precision = Precision(compute="bf16", accumulate="bf16")
    for norm, grad in run_ranks({"dp": 2}, clipped, torch.float32, precision):
        assert norm.dtype is torch.float32
        factor = 10.0 / (norm + 1e-6)
        assert torch.equal(grad, (before * factor).bfloat16())
        assert not torch.equal(grad, before.bfloat16() * factor.bfloat16()), "this gradient shows no difference"
