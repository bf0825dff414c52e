"""Odd tensors: ODD-01, ODD-03, ODD-05 of cases.yaml, without save and load."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, inspect, shard
from tests.zero.plain import Task, check, numbers

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.g = nn.Linear(2, 2), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.g


@STAGES
def test_ODD_01_a_trainable_parameter_without_dimensions(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = shard(Gated(), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
        got = inspect(model, "g")
        assert model.g.shape == () and got is not None and got.shape == ()

    torch.manual_seed(0)
    run_ranks({"dp": 1}, body)
    loss = lambda m, s, r: m(numbers(3, 2, step=s, rank=r)).square().mean()  # noqa: E731
    check(Task(Gated, loss, steps=5), stages=[stage], within=1e-6)


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.none, self.some = nn.Linear(8, 0, bias=False), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.none(x), self.some(x)


@STAGES
@pytest.mark.parametrize("compute", [None, "bf16", "fp16", "fp32", "fp64"])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_ODD_03_an_empty_matrix_keeps_its_shape(stage: int, compute: str | None) -> None:
    def body(mesh: Mesh) -> None:
        precision = None if compute is None else Precision(compute=compute)
        model, optimizer = shard(
            Nothing(), lambda p: torch.optim.AdamW(p), mesh["dp"], stage=stage, precision=precision
        )
        for _ in range(2):
            none, some = model(torch.ones(1, 8))
            assert none.shape == (1, 0) and some.shape == (1, 4) and model.none.weight.shape == (0, 8)
            (none.sum() + some.square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        got = inspect(model, "none.weight")
        assert got is not None and got.shape == (0, 8)
        held = sum(x.numel() for state in optimizer.state.values() for x in state.values() if x.dim())
        assert held == 2 * (8 * 4 + 4)

    run_ranks({"dp": 1}, body)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.norm(x)[:, : int(self.mask.sum())]


@STAGES
@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_ODD_05_integer_and_boolean_buffers_keep_their_dtype(stage: int, compute: str) -> None:
    """Buffers keep the dtype that the model gave them, floating ones too, and are each rank's own."""

    def body(mesh: Mesh) -> None:
        model, optimizer = shard(
            Buffers(),
            lambda p: torch.optim.SGD(p, lr=0.1),
            mesh["dp"],
            stage=stage,
            precision=Precision(compute=compute),
        )
        for step in range(2):
            out = model(numbers(5, 4, step=step, rank=mesh["dp"].index))
            assert out.shape == (5, 2)
            out.float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dtypes = {name: b.dtype for name, b in model.named_buffers()}
        assert dtypes == {
            "mask": torch.bool,
            "count": torch.int64,
            "norm.running_mean": torch.float32,
            "norm.running_var": torch.float32,
            "norm.num_batches_tracked": torch.int64,
        }
        assert model.count.item() == 2 and model.norm.num_batches_tracked.item() == 2
        assert model.norm.running_mean.abs().sum() > 0

    run_ranks({"dp": 2}, body)
