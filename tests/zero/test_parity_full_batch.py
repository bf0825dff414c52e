"""Against a plain loop over whole batches, which adds in another order: within the rounding of the dtype.

BatchNorm sees other batches there, RMSprop and Adagrad amplify rounding: they are held to the rank-ordered oracle.
"""

import pytest
import torch

from tests.oracle.full_batch import full_batch
from tests.oracle.recipe import Recipe, largest_difference
from tests.zero.training import STAGES, lockstep

MODELS = ("mlp", "conv", "gpt", "hf_gpt2", "hf_llama", "hf_qwen2")
OPTIMIZERS = {"sgd": (("lr", 0.1),), "adamw": (("lr", 1e-3), ("eps", 1e-5))}
PAIRS = [(2, 3), (3, 2), (4, 1)]  # ranks, stage: all stages have the same bits


def widened_norm(self: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """RMSNorm in the dtype of its input; Hugging Face's computes in fp32 whatever it is given."""
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (hidden * scale)


@pytest.fixture
def norms_in_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    for kind in (LlamaRMSNorm, Qwen2RMSNorm):
        monkeypatch.setattr(kind, "forward", widened_norm)


@pytest.mark.parametrize(("ranks", "stage"), PAIRS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_single_precision(model: str, optimizer: str, ranks: int, stage: int) -> None:
    recipe = Recipe(model, optimizer, OPTIMIZERS[optimizer], steps=5)
    expected, ours = full_batch(recipe, ranks), lockstep(recipe, ranks, stage)[0]
    largest = max(grad.abs().max().item() for grad in expected.grads.values())
    assert largest_difference(ours.grads, expected.grads) <= 2e-6 * largest
    assert largest_difference(ours.params, expected.params) <= 1e-6


@pytest.mark.parametrize(("ranks", "stage"), PAIRS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("norms_in_fp64")
def test_double_precision(model: str, optimizer: str, ranks: int, stage: int) -> None:
    recipe = Recipe(model, optimizer, OPTIMIZERS[optimizer], steps=5, dtype=torch.float64)
    expected, ours = full_batch(recipe, ranks), lockstep(recipe, ranks, stage)[0]
    assert largest_difference(ours.params, expected.params) <= 1e-12


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("model", ["hf_llama", "hf_qwen2"])
def test_models_that_hold_fp32_inside(model: str, stage: int) -> None:
    recipe = Recipe(model, "sgd", OPTIMIZERS["sgd"], steps=5, dtype=torch.float64)
    expected, ours = full_batch(recipe, 3), lockstep(recipe, 3, stage)[0]
    assert largest_difference(ours.params, expected.params) <= 1e-8


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_groups_clipping_and_accumulation(dtype: torch.dtype, stage: int) -> None:
    recipe = Recipe("gpt", "adamw", (("eps", 1e-5),), 5, micro_batches=3, clip=0.3, groups=True, dtype=dtype)
    expected, ours = full_batch(recipe, 3), lockstep(recipe, 3, stage)[0]
    bound = 1e-6 if dtype is torch.float32 else 1e-12
    assert largest_difference(ours.params, expected.params) <= bound
    assert ours.norms == pytest.approx(expected.norms, rel=bound, abs=0)
    assert max(expected.norms) > 0.3, "nothing is clipped"
