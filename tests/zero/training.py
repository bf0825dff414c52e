"""Train a recipe with shardlab.zero and say what came out, in the terms of the oracles."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import clip_grad_norm_, gathered, inspect, shard
from shardlab.zero.sharding import sharding_of
from tests.oracle.recipe import STATE_KEYS, Outcome, Recipe, copies

STAGES = (0, 1, 2, 3)


def train(mesh: Mesh, recipe: Recipe, stage: int, prefetch: bool = True) -> Outcome:
    """The program of one rank: the user's own loop. A mesh with an axis "rep" shards inside "dp" only."""
    comm = mesh["dp"]
    replicas = mesh["rep"] if "rep" in mesh.shape.axes else None
    model = recipe.build()
    model, optimizer = shard(
        model, recipe.make_optimizer, comm, stage=stage, replicas=replicas, precision=recipe.precision
    )
    gatherer = sharding_of(model).gatherer
    if gatherer is not None:
        gatherer.prefetch = prefetch
    outcome = Outcome()
    for step in range(recipe.steps):
        for micro_batch in range(recipe.micro_batches):
            loss = recipe.loss(model, recipe.batch(step, micro_batch, mesh.rank))
            loss.backward()
            outcome.losses.append(loss.item())
        if step == 0:
            outcome.grads = _found(model, "grad")
        if recipe.clip is not None:
            outcome.norms.append(clip_grad_norm_(optimizer, recipe.clip).item())
        optimizer.step()
        optimizer.zero_grad()
    for key in STATE_KEYS[recipe.optimizer] if recipe.with_state else ():
        for name, value in _found(model, key).items():
            outcome.state.setdefault(name, {})[key] = value
    outcome.buffers = copies(model.named_buffers())
    with gathered(model):
        outcome.params = copies(model.named_parameters())
    return outcome


def _found(model: nn.Module, what: str) -> dict[str, Tensor]:
    """The whole of something of every parameter that has it."""
    values = {name: inspect(model, name, what) for name, _ in model.named_parameters()}
    return {name: value for name, value in values.items() if value is not None}


def lockstep(recipe: Recipe, ranks: int | Mapping[str, int], stage: int, **options: Any) -> list[Outcome]:
    """``train`` on ranks in lockstep."""
    axes = {"dp": ranks} if isinstance(ranks, int) else ranks
    return run_ranks(axes, lambda mesh: train(mesh, recipe, stage, **options))
