"""Every stage gives, bit for bit, what one plain process gives that adds the ranks' gradients in rank order."""

from dataclasses import replace

import pytest
import torch

from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import OPTIMIZERS, Recipe, differing
from tests.zero.training import STAGES, lockstep

# Checkpoints around the blocks' calls in "gpt", around their `forward` inside Hugging Face's.
HUGGING_FACE = ("hf_gpt2", "hf_llama", "hf_qwen2")


def assert_equal(recipe: Recipe, ranks: int, stage: int, oracle: Recipe | None = None) -> None:
    expected = rank_ordered(oracle or recipe, ranks)
    for rank, (ours, theirs) in enumerate(zip(lockstep(recipe, ranks, stage), expected, strict=True)):
        assert differing(ours, theirs) == [], f"rank {rank}"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("model", ["mlp", "conv", "batchnorm", "gpt", *HUGGING_FACE])
def test_models(model: str, ranks: int, stage: int) -> None:
    assert_equal(Recipe(model, steps=2 if model in HUGGING_FACE else 3), ranks, stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", ["gpt", *HUGGING_FACE])
@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_checkpointing_changes_no_bit(model: str, checkpointing: str, stage: int) -> None:
    plain = Recipe(model, steps=2, micro_batches=2)
    assert_equal(replace(plain, checkpointing=checkpointing), 3, stage, oracle=plain)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["batchnorm", "gpt"])
def test_optimizers_and_their_state(model: str, optimizer: str, stage: int) -> None:
    assert_equal(Recipe(model, optimizer, with_state=True), 3, stage)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("optimizer", "ranks"), [*(("adamw", n) for n in (1, 2, 3, 4)), ("sgd", 3)])
def test_groups_clipping_and_accumulation(optimizer: str, ranks: int, stage: int) -> None:
    assert_equal(Recipe("gpt", optimizer, micro_batches=3, clip=0.3, groups=True), ranks, stage)


@pytest.mark.parametrize("stage", STAGES)
def test_a_norm_below_the_limit_changes_no_bit(stage: int) -> None:
    assert_equal(Recipe("mlp", clip=1e3), 3, stage, oracle=Recipe("mlp", clip=1e9))


@pytest.mark.parametrize("stage", STAGES)
def test_double_precision(stage: int) -> None:
    assert_equal(Recipe("gpt", micro_batches=2, clip=0.3, dtype=torch.float64), 3, stage)


def test_the_oracle_sees_other_batches_per_rank_and_buffers_of_its_own() -> None:
    first, second = rank_ordered(Recipe("batchnorm", steps=1), 2)
    assert differing(first, second) == ["buffers: norm.running_mean", "buffers: norm.running_var", "losses"]
