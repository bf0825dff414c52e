"""Mixed precision: what is rounded where is part of the contract, so it is held to the bit as well."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import Precision, inspect, shard
from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import Recipe, differing
from tests.zero.training import STAGES, lockstep

PRECISIONS = {
    "masters": Precision(compute="bf16"),
    "16 bits on the wire": Precision(compute="bf16", reduce="bf16"),
    "16 bits added up": Precision(compute="bf16", reduce="bf16", accumulate="bf16"),
    "no masters": Precision(compute="bf16", reduce="bf16", accumulate="bf16", master="bf16"),
    "fp32 with a 16-bit wire": Precision(reduce="bf16"),
    "fp64 masters": Precision(accumulate="fp64", master="fp64"),
}


@pytest.mark.parametrize(("model", "stage"), [("gpt", 0), ("mlp", 1), ("mlp", 2), ("gpt", 3)])
@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_same_bits(model: str, precision: Precision, stage: int) -> None:
    recipe = Recipe(model, steps=4, micro_batches=2, precision=precision, groups=True, with_state=True)
    expected = rank_ordered(recipe, 3)
    ours = lockstep(recipe, 3, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 3


@pytest.mark.parametrize("stage", STAGES)
def test_batchnorm_stays_in_fp32(stage: int) -> None:
    recipe = Recipe("batchnorm", micro_batches=2, precision=Precision(compute="bf16"))
    expected = rank_ordered(recipe, 2)
    ours = lockstep(recipe, 2, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 2
    assert {name for name, p in ours[0].params.items() if p.dtype is torch.float32} == {"norm.weight", "norm.bias"}


@pytest.mark.parametrize("stage", STAGES)
def test_clipping_with_masters(stage: int) -> None:
    recipe = Recipe("gpt", clip=0.3, precision=Precision(compute="bf16"))
    expected = rank_ordered(recipe, 3)
    ours = lockstep(recipe, 3, stage)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 3


def test_hugging_face_in_bf16() -> None:
    """Its rotary frequencies are a buffer: rounded to bf16 they would be other positions."""
    recipe = Recipe("hf_llama", checkpointing="non-reentrant", precision=Precision(compute="bf16"))
    expected = rank_ordered(recipe, 3)
    ours = lockstep(recipe, 3, 3)
    assert [differing(a, b) for a, b in zip(ours, expected, strict=True)] == [[]] * 3
    assert {buffer.dtype for buffer in ours[0].buffers.values()} == {torch.float32}
    assert {p.dtype for p in ours[0].params.values()} == {torch.bfloat16}


def test_masters_learn_what_bf16_rounds_away() -> None:
    """Steps of 1e-4 add up in fp32 masters and are lost on bf16 weights near 1, whose neighbours are 0.004 away."""
    recipe = Recipe("gpt", "sgd", (("lr", 1e-4),), 10, precision=PRECISIONS["masters"])
    mesh_size, norm = 2, "blocks.0.ln1.weight"

    def weights(mesh: Mesh, precision: Precision) -> Tensor:
        model, optimizer = shard(recipe.build(), recipe.make_optimizer, mesh["dp"], stage=3, precision=precision)
        for step in range(recipe.steps):
            recipe.loss(model, recipe.batch(step, 0, mesh.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = inspect(model, norm, "master")
        assert found is not None
        return found.float()

    exact = lockstep(replace(recipe, precision=None), mesh_size, 3)[0].params[norm]
    kept = run_ranks({"dp": mesh_size}, weights, PRECISIONS["masters"])[0]
    lost = run_ranks({"dp": mesh_size}, weights, PRECISIONS["no masters"])[0]
    moved = (exact - 1).abs().max().item()
    assert 0 < moved < 0.002, "too far: bf16 could follow"
    assert torch.equal(lost, torch.ones_like(lost))
    assert (kept - exact).abs().max().item() < 0.1 * moved
