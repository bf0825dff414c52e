"""no_sync at stages 0 and 1: micro-batches are added before ranks are, so bits differ from the other order of sums."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import clip_grad_norm_, gathered, inspect, no_sync, shard
from tests.oracle.recipe import Recipe, copies, largest_difference
from tests.zero.training import lockstep

RECIPE = Recipe("gpt", "sgd", steps=3, micro_batches=3, clip=0.3)
REDUCTIONS = ("all_reduce", "reduce_scatter")


def train(mesh: Mesh, stage: int, locally: int) -> tuple[dict[str, Tensor], int]:
    """The first ``locally`` micro-batches of a step are added locally; the weights, and the number of reductions."""
    model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    before = sum(mesh.recorder.calls[op] for op in REDUCTIONS)
    for step in range(RECIPE.steps):
        for micro_batch in range(RECIPE.micro_batches):
            with no_sync(model) if micro_batch < locally else nullcontext():
                RECIPE.loss(model, RECIPE.batch(step, micro_batch, mesh.rank)).backward()
        clip_grad_norm_(optimizer, 0.3)
        optimizer.step()
        optimizer.zero_grad()
    reductions = sum(mesh.recorder.calls[op] for op in REDUCTIONS) - before
    with gathered(model):
        return copies(model.named_parameters()), reductions


@pytest.mark.parametrize("locally", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_local_sums_agree_with_sums_per_micro_batch(stage: int, locally: int) -> None:
    expected = lockstep(RECIPE, 3, stage)[0].params
    for params, _ in run_ranks({"dp": 3}, train, stage, locally):
        assert largest_difference(params, expected) <= 1e-6


@pytest.mark.parametrize("locally", [1, 2])
def test_stages_0_and_1_have_the_same_bits(locally: int) -> None:
    for (first, _), (second, _) in zip(
        run_ranks({"dp": 3}, train, 0, locally), run_ranks({"dp": 3}, train, 1, locally), strict=True
    ):
        assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("stage", [0, 1])
def test_each_unit_is_sent_once_a_step(stage: int) -> None:
    every_time = run_ranks({"dp": 2}, train, stage, 0)[0][1]
    assert run_ranks({"dp": 2}, train, stage, 2)[0][1] * 3 == every_time


def after_clearing(mesh: Mesh, stage: int, clear: str) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of micro-batch 1 after that of micro-batch 0 was added locally and cleared, and without it."""
    seen = []
    for before in (True, False):
        model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
        if before:
            with no_sync(model):
                RECIPE.loss(model, RECIPE.batch(0, 0, mesh.rank)).backward()
            optimizer.zero_grad() if clear == "optimizer" else model.zero_grad()
        RECIPE.loss(model, RECIPE.batch(0, 1, mesh.rank)).backward()
        seen.append(inspect(model, "norm.bias", "grad"))  # 12 elements: one rank of three owns all of it
    return seen[0], seen[1]


@pytest.mark.parametrize("clear", ["optimizer", "model"])
@pytest.mark.parametrize("stage", [0, 1])
def test_local_gradients_can_be_cleared(stage: int, clear: str) -> None:
    for cleared, fresh in run_ranks({"dp": 3}, after_clearing, stage, clear):
        assert cleared is not None and fresh is not None
        assert torch.equal(cleared, fresh)


def step_too_early(mesh: Mesh, stage: int) -> None:
    model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    with no_sync(model):
        RECIPE.loss(model, RECIPE.batch(0, 0, mesh.rank)).backward()
    optimizer.step()


@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_needs_a_sum(stage: int) -> None:
    with pytest.raises(RuntimeError, match=r"'tok.weight'.*no_sync.*the last backward before a step"):
        run_ranks({"dp": 2}, step_too_early, stage)


def enter(mesh: Mesh, stage: int) -> None:
    model, _ = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    with no_sync(model):
        pass


@pytest.mark.parametrize("stage", [2, 3])
def test_is_refused_where_no_rank_keeps_whole_gradients(stage: int) -> None:
    with pytest.raises(ValueError, match=f"no_sync at stage {stage}: gradients are sharded"):
        run_ranks({"dp": 2}, enter, stage)
