"""Stages 0 to 3 equal each other bit for bit, run after run, with and without prefetch."""

from dataclasses import replace

import pytest

from tests.oracle.recipe import Recipe, differing
from tests.zero.training import STAGES, lockstep

LONG = Recipe("gpt", steps=4, micro_batches=3, clip=0.3, groups=True, with_state=True)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_stages_have_the_same_bits(ranks: int) -> None:
    runs = [lockstep(LONG, ranks, stage) for stage in STAGES]
    assert all(norm > 0.3 for norm in runs[0][0].norms), "nothing is clipped"
    for stage, run in zip(STAGES, runs, strict=True):
        assert [differing(ours, first) for ours, first in zip(run, runs[0], strict=True)] == [[]] * ranks, (
            f"stage {stage}"
        )


@pytest.mark.parametrize("model", ["batchnorm", "gpt", "hf_qwen2"])
def test_runs_repeat(model: str) -> None:
    recipe = Recipe(model, micro_batches=2)
    first, second = lockstep(recipe, 3, 3), lockstep(recipe, 3, 3)
    assert [differing(a, b) for a, b in zip(first, second, strict=True)] == [[]] * 3


@pytest.mark.parametrize("checkpointing", [None, "non-reentrant", "reentrant"])
@pytest.mark.parametrize("model", ["gpt", "hf_llama"])
def test_prefetch_changes_no_bit(model: str, checkpointing: str | None) -> None:
    recipe = replace(Recipe(model, micro_batches=2), checkpointing=checkpointing)
    ahead, late = lockstep(recipe, 3, 3, prefetch=True), lockstep(recipe, 3, 3, prefetch=False)
    assert [differing(a, b) for a, b in zip(ahead, late, strict=True)] == [[]] * 3


def test_another_number_of_ranks_has_other_batches() -> None:
    two, four = lockstep(Recipe("mlp"), 2, 3), lockstep(Recipe("mlp"), 4, 3)
    assert any(name.startswith("params") for name in differing(two[0], four[0]))
