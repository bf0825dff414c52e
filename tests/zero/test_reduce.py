from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import recording, run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import Precision, gathered, grad_sink, inspect, shard
from shardlab.zero.sharding import sharding_of
from tests.oracle.recipe import Recipe
from tests.zero.training import STAGES
from tests.zero.watching import BACKWARD

RECIPE = Recipe("gpt")


class Branches(nn.Module):
    """Three layers, called in the order that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2, bias=False) for _ in range(3))
        for layer in (self.a, self.b, self.c):
            nn.init.eye_(layer.weight)

    def forward(self, x: Tensor, order: str) -> Tensor:
        for name in order:
            x = getattr(self, name)(x)
        return x


def branches(
    mesh: Mesh, stage: int, orders: list[str], options: dict[str, Any] | None = None
) -> tuple[nn.Module, list[str]]:
    """One backward in which each rank calls the layers in its own order; the units in the order in which they left."""
    model, _ = shard(Branches(), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage, **(options or {}))
    with recording(mesh.recorder) as ledger:
        model(torch.ones(1, 2), orders[mesh.rank]).sum().backward()
    return model, [span.name for span in ledger if span.op in ("all_reduce", "reduce_scatter")]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_units_leave_in_reverse_registration_order(stage: int, order: str) -> None:
    for _, sent in run_ranks({"dp": 2}, branches, stage, [order, order]):
        assert sent == ["c", "b", "a"]


def grads_of(
    mesh: Mesh, stage: int, orders: list[str], options: dict[str, Any] | None = None
) -> list[list[float] | None]:
    model, _ = branches(mesh, stage, orders, options)
    grads = [inspect(model, f"{name}.weight", "grad") for name in "abc"]
    return [None if g is None else g.flatten().tolist() for g in grads]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ranks_that_skip_different_layers_agree(stage: int) -> None:
    """A rank without a gradient sends zeros: half of the other's gradient is the mean."""
    for grads in run_ranks({"dp": 2}, grads_of, stage, ["ab", "bc"]):
        assert grads == [[0.5] * 4, [1.0] * 4, [0.5] * 4]


@pytest.mark.parametrize("stage", STAGES)
def test_what_no_rank_used_has_no_gradient(stage: int) -> None:
    for grads in run_ranks({"dp": 2}, grads_of, stage, ["ac", "ac"]):
        assert grads == [[1.0] * 4, None, [1.0] * 4]


@pytest.mark.parametrize(("scale", "expected"), [(None, 1.0), (1.0, 2.0), (0.25, 0.5)])
def test_the_one_divisor(scale: float | None, expected: float) -> None:
    for grads in run_ranks({"dp": 2}, grads_of, 3, ["abc", "abc"], {"grad_scale": scale}):
        assert grads == [[expected] * 4] * 3


def dtypes_of_sums(mesh: Mesh, stage: int, precision: Precision) -> list[torch.dtype]:
    model, _ = branches(mesh, stage, ["abc"] * 3, {"precision": precision})
    sharding = sharding_of(model)
    return [group.acc.dtype for group in sharding.trained_groups if group.acc is not None]


@pytest.mark.parametrize("stage", STAGES)
def test_sums_are_kept_in_the_accumulate_dtype(stage: int) -> None:
    precision = Precision(compute="bf16", reduce="bf16", accumulate="fp64")
    assert run_ranks({"dp": 3}, dtypes_of_sums, stage, precision) == [[torch.float64] * 3] * 3


def micro_batches(mesh: Mesh, stage: int) -> list[tuple[int, int, str]]:
    model, optimizer = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
    with recording(mesh.recorder) as ledger:
        for step in range(2):
            for micro_batch in range(2):
                RECIPE.loss(model, RECIPE.batch(step, micro_batch, mesh.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [(s.step, s.micro_batch, s.name) for s in ledger if s.op in ("all_reduce", "reduce_scatter")]


@pytest.mark.parametrize("stage", STAGES)
def test_every_backward_is_reduced_and_labelled(stage: int) -> None:
    for spans in run_ranks({"dp": 2}, micro_batches, stage):
        assert spans == [(step, micro, name) for step in range(2) for micro in range(2) for name in BACKWARD]


def sparse(mesh: Mesh, stage: int) -> Tensor | None:
    model = nn.Embedding(5, 2, sparse=True)
    nn.init.ones_(model.weight)
    model, _ = shard(model, lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)
    model(torch.tensor([mesh.rank, mesh.rank, 4])).sum().backward()
    return inspect(model, "weight", "grad")


@pytest.mark.parametrize("stage", STAGES)
def test_sparse_gradients_are_summed_as_dense_ones(stage: int) -> None:
    for grad in run_ranks({"dp": 2}, sparse, stage):
        assert grad is not None and grad[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def through_a_sink(mesh: Mesh, stage: int) -> tuple[list[Any], list[Any]]:
    """What autograd.grad gives, put in by hand, and what backward gives."""
    results = []
    for by_hand in (True, False):
        model, _ = shard(RECIPE.build(), RECIPE.make_optimizer, mesh["dp"], stage=stage)
        params = dict(model.named_parameters())
        loss = RECIPE.loss(model, RECIPE.batch(0, 0, mesh.rank))
        if by_hand:
            sink = grad_sink(model)
            with gathered(model):
                grads = torch.autograd.grad(loss, list(params.values()))
            for p, grad in zip(params.values(), grads, strict=True):
                sink.add(p, grad, micro_batch=0)
            sink.end(micro_batch=0)
        else:
            loss.backward()
        results.append([inspect(model, name, "grad") for name in params])
    return results[0], results[1]


@pytest.mark.parametrize("stage", STAGES)
def test_a_sink_reduces_what_hooks_do_not_see(stage: int) -> None:
    for by_hand, backward in run_ranks({"dp": 2}, through_a_sink, stage):
        assert all(a is not None and torch.equal(a, b) for a, b in zip(by_hand, backward, strict=True))


def wrong_sink(mesh: Mesh, how: str) -> None:
    model, _ = shard(Branches(), torch.optim.AdamW, mesh["dp"], stage=2)
    p = nn.Parameter(torch.ones(2)) if how == "stranger" else next(model.parameters())
    grad_sink(model).add(p, torch.ones(2), 0)


def test_a_sink_names_what_it_cannot_take() -> None:
    with pytest.raises(ValueError, match=r"a parameter of shape \(2,\) is not a trained one of this model"):
        run_ranks({"dp": 2}, wrong_sink, "stranger")
    with pytest.raises(ValueError, match=r"'a.weight' has shape \(2, 2\), its gradient \(2,\)"):
        run_ranks({"dp": 2}, wrong_sink, "shape")
