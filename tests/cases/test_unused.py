"""Modules that some rank does not use: UNU-01 and UNU-04 of cases.yaml."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import DivergedError, Mesh, run_ranks
from shardlab.zero import inspect, shard
from tests.zero.plain import Task, fresh, numbers, plain, same, train


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_UNU_01_a_weight_that_never_takes_part(stage: int) -> None:
    task = Task(
        Unused,
        lambda m, s, r: m(numbers(3, 4, step=s, rank=r)).square().mean(),
        lambda p: torch.optim.SGD(p, lr=0.1),
    )
    start = fresh(task)
    for got, _ in run_ranks({"dp": 2}, lambda mesh: train(mesh, task, stage)):
        same(got, plain(task, 2), within=1e-6)
        assert torch.equal(got["never.weight"], start.never.weight) and torch.equal(got["never.bias"], start.never.bias)
        assert not torch.equal(got["used.weight"], start.used.weight)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, calls: int) -> Tensor:
        x = self.shared(x)
        return sum((self.head(x * (i + 1)).square().mean() for i in range(calls)), x.mean())


@pytest.mark.parametrize("calls", [(1, 3), (1, 0)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_UNU_04_another_number_of_calls_on_each_rank(stage: int, calls: tuple[int, int]) -> None:
    """Stages 0 to 2 agree; at stage 3 all ranks raise, and the error names the module and what each rank was to do."""
    task = Task(Heads, lambda m, s, r: m(numbers(3, 4, step=s, rank=r), calls[r]))

    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(task), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
        rank = mesh["dp"].index
        if stage == 3:
            with pytest.raises(DivergedError, match=r"'head'") as caught:
                task.loss(model, 0, rank).backward()
            text = str(caught.value)
            assert "rank 0: " in text and "rank 1: " in text
            if calls == (1, 3):  # the second call met the gather of rank 0's backward: the same bytes
                assert "rank 1: gather in training forward 1 (time 3) 'head'" in text
            return
        task.loss(model, 0, rank).backward()
        alone = fresh(task)
        (sum(task.loss(alone, 0, r) for r in range(2)) / 2).backward()
        for name, p in alone.named_parameters():
            got = inspect(model, name, "grad")
            assert got is not None and (got - p.grad).abs().max() <= 1e-6, name

    run_ranks({"dp": 2}, body, timeout_s=20)
