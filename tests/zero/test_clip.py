import math

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import recording, run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import clip_grad_norm_, inspect, shard
from tests.oracle.recipe import Recipe
from tests.zero.training import STAGES

RECIPE = Recipe("gpt")


def clip(mesh: Mesh, stage: int, max_norm: float) -> tuple[float, float, float, dict[str, int]]:
    """Norm before, norm after, what torch finds in the whole gradients, and the calls that clipping made."""
    model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    RECIPE.loss(model, RECIPE.batch(0, 0, mesh.rank)).backward()
    grads = [inspect(model, name, "grad") for name, _ in model.named_parameters()]
    torchs = torch.nn.utils.get_total_norm([g for g in grads if g is not None]).item()
    with recording(mesh.recorder) as ledger:
        before = clip_grad_norm_(optimizer, max_norm)
    calls = {op: len(ledger.filter(op=op)) for op in ("control", "all_reduce", "all_gather")}
    assert before.dtype is torch.float32 and before.shape == ()
    return before.item(), clip_grad_norm_(optimizer, math.inf).item(), torchs, calls


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_that_of_the_whole_gradient(stage: int) -> None:
    for before, after, torchs, calls in run_ranks({"dp": 3}, clip, stage, 0.25):
        assert before == pytest.approx(torchs, rel=1e-6)
        assert after == pytest.approx(0.25, rel=1e-5)
        assert calls["all_reduce"] == calls["all_gather"] == 0
        assert calls["control"] == (0 if stage == 0 else 1)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_smaller_norm_is_left_alone(stage: int) -> None:
    for before, after, _, _ in run_ranks({"dp": 3}, clip, stage, 1e4):
        assert after == before


def norms_of_equal_batches(mesh: Mesh, stage: int) -> list[float]:
    """All ranks see one batch. Means over 1, 2 and 4 equal gradients are exact, so only the cut differs."""
    model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    found = []
    for step in range(6):
        RECIPE.loss(model, RECIPE.batch(step, 0, 0)).backward()
        found.append(clip_grad_norm_(optimizer, 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_the_norm_does_not_depend_on_the_cut() -> None:
    alone = run_ranks({"dp": 1}, norms_of_equal_batches, 0)[0]
    assert len(set(alone)) == 6
    for ranks in (2, 4):
        assert run_ranks({"dp": ranks}, norms_of_equal_batches, 3) == [alone] * ranks


def infinite(mesh: Mesh, stage: int) -> tuple[float, Tensor | None]:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = shard(model, torch.optim.AdamW, mesh["dp"], stage=stage)
    model(torch.tensor([1.0, math.inf if mesh.rank == 1 else 1.0])).sum().backward()
    return clip_grad_norm_(optimizer, 1.0).item(), inspect(model, "weight", "grad")


@pytest.mark.parametrize("stage", STAGES)
def test_a_norm_that_is_not_finite_scales_nothing(stage: int) -> None:
    for norm, grad in run_ranks({"dp": 2}, infinite, stage):
        assert norm == math.inf
        assert grad is not None and grad.tolist() == [[1.0, math.inf]]


def nothing_yet(mesh: Mesh, stage: int) -> float:
    _, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    return clip_grad_norm_(optimizer, 1.0).item()


@pytest.mark.parametrize("stage", [0, 3])
def test_without_gradients_the_norm_is_zero(stage: int) -> None:
    assert run_ranks({"dp": 2}, nothing_yet, stage) == [0.0, 0.0]


def test_an_optimizer_that_was_not_sharded() -> None:
    with pytest.raises(ValueError, match=r"this SGD was not sharded: pass what shardlab.zero.shard returned"):
        clip_grad_norm_(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 1.0)
