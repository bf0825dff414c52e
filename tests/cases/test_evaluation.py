"""Evaluation: EVL-01 and EVL-03 of cases.yaml."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import DivergedError, Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.plain import Task, Weights, at_rest, fresh, numbers, same, whole


def test_EVL_01_another_number_of_batches_on_each_rank() -> None:
    """All ranks raise, and each is told in which forward, of training or evaluation, every rank was."""

    def body(mesh: Mesh) -> None:
        torch.manual_seed(0)
        model, _ = shard(nn.Linear(4, 4), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        with pytest.raises(DivergedError) as caught:
            with torch.no_grad():
                for batch in range(3 if mesh["dp"].index == 0 else 5):
                    model(numbers(2, 4, step=batch, rank=0))
            model(numbers(2, 4, step=9, rank=0)).sum().backward()
        text = str(caught.value)
        assert "rank 0: gather in training forward 1" in text and "rank 1: gather in evaluation forward 4" in text

    run_ranks({"dp": 2}, body, timeout_s=20)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_EVL_01_does_not_matter_where_parameters_are_whole(stage: int) -> None:
    def body(mesh: Mesh) -> float:
        torch.manual_seed(0)
        model, optimizer = shard(nn.Linear(4, 4), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
        with torch.no_grad():
            for batch in range(3 if mesh["dp"].index == 0 else 5):
                model(numbers(2, 4, step=batch, rank=0))
        model(numbers(2, 4, step=9, rank=0)).sum().backward()
        optimizer.step()
        return float(whole(model)["weight"].sum())

    a, b = run_ranks({"dp": 2}, body)
    assert a == b


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.tanh(self.a(x))))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_EVL_03_evaluation_before_between_and_after(
    stage: int, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    """Micro-batches of one step with evaluations in between, and dropout, which shows a disturbed random state."""

    def body(mesh: Mesh, evaluate: bool) -> tuple[Weights, Tensor]:
        task = Task(lambda: nn.Sequential(Block(), nn.Tanh()), lambda *_: torch.tensor(0.0))
        model = fresh(task)
        model, optimizer = shard(
            model, lambda p: torch.optim.AdamW(p, lr=0.01), mesh["dp"], stage=stage, units=[model[0]]
        )

        def look() -> None:
            if evaluate:
                model.eval()
                with mode():
                    out = model(numbers(3, 4, step=77, rank=0))
                assert out.shape == (3, 4) and out.isfinite().all()
                at_rest(model)
                model.train()

        torch.manual_seed(mesh["dp"].index)
        look()
        for step in range(2):
            for micro_batch in range(4):
                if micro_batch == 2:
                    look()
                model(numbers(3, 4, step=10 * step + micro_batch, rank=mesh["dp"].index)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        look()
        return whole(model), torch.get_rng_state()

    with_it, without = run_ranks({"dp": 2}, body, True), run_ranks({"dp": 2}, body, False)
    for (got, state), (want, want_state) in zip(with_it, without, strict=True):
        same(got, want)
        assert torch.equal(state, want_state)
