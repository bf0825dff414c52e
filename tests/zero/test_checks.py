"""What `shard` refuses before it touches anything."""

import pytest
import torch
from torch import nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.gain import STAGES, Net, loss, refused, sgd
from tests.zero.plain import Task, check


@pytest.mark.parametrize("stage", [-1, 4, "3", None])
def test_an_unknown_stage_is_refused(stage: object) -> None:
    refused(Net(), sgd, r"stage is .*valid are 0, 1, 2, 3", stage=stage)  # type: ignore[arg-type]


def test_parameters_without_values_are_refused_by_name() -> None:
    with torch.device("meta"):
        on_meta = Net()
    refused(on_meta, sgd, r"'gain'.*meta device.*before shard")
    refused(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)), sgd, r"'1\.weight' is not initialised")


def test_a_model_without_parameters_is_refused() -> None:
    refused(nn.Tanh(), sgd, "Tanh has no parameters")


@STAGES
def test_sharding_twice_is_refused(stage: int) -> None:
    """The whole again, a part of it, or a model that holds it."""

    def body(mesh: Mesh) -> None:
        model, _ = shard(Net(), sgd, mesh["dp"], stage=stage)
        for again in (model, model.first, nn.Sequential(model, nn.Linear(2, 2))):
            with pytest.raises(ValueError, match="already sharded"):
                shard(again, sgd, mesh["dp"], stage=stage)

    run_ranks({"dp": 1}, body)


def test_two_parameters_over_one_memory_are_refused_by_name() -> None:
    """Plain torch updates them as one; in a flat buffer they would part without a word."""
    model = Net()
    model.copy = nn.Linear(6, 5)
    model.copy.weight = nn.Parameter(model.first.weight.data)
    refused(model, sgd, r"'first\.weight'.*'copy\.weight'.*one nn\.Parameter")
    model = Net()
    model.last.weight = nn.Parameter(model.first.weight.data.reshape(-1)[:10].view(2, 5))
    refused(model, sgd, r"'first\.weight'.*'last\.weight'.*one nn\.Parameter", stage=0)
    model = Net()
    model.register_buffer("seen", model.first.weight.detach().t())
    refused(model, sgd, r"'first\.weight'.*'seen'")


def test_parameters_side_by_side_in_one_memory_are_fine() -> None:
    def prepare(model: nn.Module) -> None:
        flat = torch.cat([model.first.weight.detach().reshape(-1), model.last.weight.detach().reshape(-1)])
        model.first.weight = nn.Parameter(flat[:30].view(5, 6))
        model.last.weight = nn.Parameter(flat[30:].view(2, 5))

    check(Task(Net, loss, prepare=prepare), stages=(0, 3))


@STAGES
def test_gradients_from_before_are_refused_by_name(stage: int) -> None:
    model = Net()
    loss(model, 0, 0).backward()
    refused(model, sgd, r"'gain'.*zero_grad\(\) before shard", stage=stage)


def test_a_mesh_is_no_group() -> None:
    def body(mesh: Mesh) -> None:
        with pytest.raises(TypeError, match=r'comm is a Mesh; give one of its groups, such as mesh\["dp"\]'):
            shard(Net(), sgd, mesh, stage=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="comm is str"):
            shard(Net(), sgd, "dp", stage=1)  # type: ignore[arg-type]

    run_ranks({"dp": 1}, body)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_weight_that_forward_rescales_is_refused_by_name(kind: type[nn.Module]) -> None:
    """Each rank would rescale the rows of its own tokens, and their weights would part without a word."""
    refused(nn.Sequential(kind(7, 3, max_norm=1.0)), sgd, r"module '0' has max_norm=1.0", stage=0)
