"""On real ranks, each a process: the bits of the oracle, which are those of lockstep."""

from typing import Any

import pytest

from shardlab.zero import Precision
from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import Recipe, differing
from tests.zero.training import STAGES, train

FULL = Recipe("gpt", steps=3, micro_batches=3, clip=0.3, groups=True, with_state=True)


def assert_equal(mpi_ranks: Any, recipe: Recipe, ranks: int, stage: int) -> None:
    expected = rank_ordered(recipe, ranks)
    ours = mpi_ranks(ranks)(train, recipe, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * ranks


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_tied_gpt(mpi_ranks: Any, ranks: int, stage: int) -> None:
    assert_equal(mpi_ranks, FULL, ranks, stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adagrad"])
def test_optimizers(mpi_ranks: Any, optimizer: str, stage: int) -> None:
    assert_equal(mpi_ranks, Recipe("mlp", optimizer, micro_batches=2, with_state=True), 3, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_batchnorm(mpi_ranks: Any, stage: int) -> None:
    assert_equal(mpi_ranks, Recipe("batchnorm"), 4, stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["hf_gpt2", "hf_llama", "hf_qwen2"])
def test_hugging_face(mpi_ranks: Any, model: str, stage: int) -> None:
    assert_equal(mpi_ranks, Recipe(model, steps=2), 2, stage)


@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
@pytest.mark.parametrize("model", ["gpt", "hf_gpt2", "hf_llama", "hf_qwen2"])
def test_checkpointing(mpi_ranks: Any, model: str, checkpointing: str) -> None:
    assert_equal(mpi_ranks, Recipe(model, steps=2, checkpointing=checkpointing), 2, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16(mpi_ranks: Any, stage: int) -> None:
    recipe = Recipe("gpt", micro_batches=2, precision=Precision(compute="bf16", reduce="bf16"))
    assert_equal(mpi_ranks, recipe, 3, stage)


@pytest.mark.parametrize("stage", [0, 3])
def test_hybrid_sharding(mpi_ranks: Any, stage: int) -> None:
    recipe = Recipe("gpt", micro_batches=2, clip=0.3)
    expected = rank_ordered(recipe, [(0, 1), (2, 3)])
    ours = mpi_ranks({"rep": 2, "dp": 2})(train, recipe, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 4
