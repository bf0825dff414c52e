"""Mixed dtypes: MIX-01 without saving, MIX-03 for the reduce dtype, MIX-04 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, inspect, shard
from tests.zero.plain import Task, fresh, numbers, sharding, whole


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8), nn.Linear(8, 8).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x.bfloat16()).float()).bfloat16()).float()


def squares(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(4, 8, step=step, rank=rank)).square().mean()


@pytest.mark.parametrize("cut", ["per layer", "one unit"])
def test_MIX_01_fp32_norms_inside_a_bf16_model(cut: str) -> None:
    task = Task(Norms, squares, lambda p: torch.optim.SGD(p, lr=0.1), steps=2)

    def body(mesh: Mesh, stage: int) -> dict[str, Tensor]:
        model = fresh(task)
        want = {name: p.dtype for name, p in model.named_parameters()}
        units = None if cut == "per layer" else [model]
        model, optimizer = shard(model, task.optimizer, mesh["dp"], stage=stage, units=units)
        for step in range(task.steps):
            squares(model, step, mesh["dp"].index).backward()
            grad = inspect(model, "norm.weight", "grad")
            assert grad is not None and grad.dtype == torch.float32
            assert {
                g.dtypes.reduce for u in sharding(model).units for g in u.trained if "norm.weight" in g.by_name
            } == {torch.float32}
            optimizer.step()
            optimizer.zero_grad()
            assert {name: p.dtype for name, p in model.named_parameters()} == want
        return whole(model)

    first = run_ranks({"dp": 2}, body, 0)[0]
    assert first["a.weight"].dtype == torch.bfloat16 and first["norm.weight"].dtype == torch.float32
    for stage in (1, 2, 3):
        for got in run_ranks({"dp": 2}, body, stage):
            for name, want in first.items():
                assert (got[name].float() - want.float()).norm() <= 1e-3 * want.float().norm(), name


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("compute", [None, "bf16"])
def test_MIX_03_gradients_travel_in_another_dtype(stage: int, compute: str | None) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

    task = Task(make, squares, lambda p: torch.optim.SGD(p, lr=0.1), steps=10)

    def body(mesh: Mesh) -> None:
        precision = Precision(compute=compute, reduce="bf16")
        model, optimizer = shard(fresh(task), task.optimizer, mesh["dp"], stage=stage, precision=precision)
        stored = {p.dtype for p in model.parameters()}
        for step in range(task.steps):
            alone = fresh(task)
            with torch.no_grad():
                for name, p in alone.named_parameters():
                    p.copy_(inspect(model, name))
            squares(model, step, mesh["dp"].index).float().backward()
            if compute is None:
                locals_ = []
                for rank in range(2):
                    alone.zero_grad()
                    squares(alone, step, rank).backward()
                    locals_.append({name: p.grad.clone() for name, p in alone.named_parameters()})
                for name in locals_[0]:
                    a, b = locals_[0][name], locals_[1][name]
                    got = inspect(model, name, "grad")
                    assert got is not None and got.dtype == torch.float32
                    assert ((got - (a + b) / 2).abs() <= 2**-7 * (a.abs() + b.abs()) / 2 + 1e-12).all(), name
            optimizer.step()
            optimizer.zero_grad()
        assert {p.dtype for p in model.parameters()} == stored == {torch.bfloat16 if compute else torch.float32}

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_MIX_04_bf16_weights_learn_through_fp32_masters(stage: int) -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0]))

        def forward(self) -> Tensor:
            return self.w.sum()

    def body(mesh: Mesh) -> None:
        model, optimizer = shard(
            One(), lambda p: torch.optim.SGD(p, lr=0.001), mesh["dp"], stage=stage, precision=Precision(compute="bf16")
        )
        for _ in range(100):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
        weight, master = inspect(model, "w"), inspect(model, "w", "master")
        assert weight is not None and weight.dtype == torch.bfloat16 and weight.item() == 0.8984375
        assert master is not None and abs(master.item() - 0.9) <= 1e-5

    run_ranks({"dp": 2}, body)
