"""Judges the life-cycle tests: a plain process that adds the ranks' chunks in rank order, and its sharded twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard
from shardlab.zero.sharding import Sharding
from shardlab.zero.unit import UnitState

Weights = dict[str, Tensor]


@dataclass
class Task:
    """A model, what it learns, and for how long; loss(model, step, rank) must be the same function in both worlds."""

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, int], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = lambda params: torch.optim.AdamW(params, lr=1e-2)
    steps: int = 3
    prepare: Callable[[nn.Module], Any] = lambda model: None
    """Done to a fresh model in both worlds: freeze, tie, switch on checkpointing."""


def numbers(*shape: int, step: int, rank: int) -> Tensor:
    """Normal draws that depend on step and rank alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def tokens(vocabulary: int, *shape: int, step: int, rank: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def fresh(task: Task) -> nn.Module:
    torch.manual_seed(0)
    model = task.make()
    task.prepare(model)
    return model


def plain(task: Task, ranks: int) -> Weights:
    """Train in one process; gradients are the rank-ordered sum times 1 / ranks. Each rank has its own buffers."""
    model = fresh(task)
    optimizer = task.optimizer(model.parameters())
    buffers = [[b.clone() for b in model.buffers()] for _ in range(ranks)]
    for step in range(task.steps):
        total: Weights = {}
        for rank in range(ranks):
            model.zero_grad()
            _copy(buffers[rank], model.buffers())
            task.loss(model, step, rank).backward()
            _copy(model.buffers(), buffers[rank])
            for name, p in model.named_parameters():
                if p.grad is not None:
                    total[name] = p.grad.clone() if name not in total else total[name] + p.grad
        for name, p in model.named_parameters():
            p.grad = total[name] * (1.0 / ranks) if name in total else None
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _copy(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for x, y in zip(source, target, strict=True):
            y.copy_(x)


def sharding(model: nn.Module) -> Sharding:
    return model.shardlab_sharding  # type: ignore[return-value]


def at_rest(model: nn.Module) -> None:
    """Nothing stays gathered, lent or half done once a step is over."""
    parts = sharding(model)
    rest = UnitState.LIVE if parts.stage.keeps_full else UnitState.SHARDED
    assert {unit.state for unit in parts.units} == {rest}
    assert not any(unit.calls or unit.held or unit.in_backward or unit.awaited_inputs for unit in parts.units)
    if parts.stage.number != 1:  # stage 1 keeps its send buffers
        assert parts.pool.lent_bytes == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def train(mesh: Mesh, task: Task, stage: int, lost: int | None = 0, **options: Any) -> tuple[Weights, list[float]]:
    """Train the sharded twin on this rank; returns whole weights and the losses."""
    comm = mesh["dp"]
    model, optimizer = shard(fresh(task), task.optimizer, comm, stage=stage, **options)
    losses = []
    for step in range(task.steps):
        loss = task.loss(model, step, comm.index)
        loss.backward()
        at_rest(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert lost is None or sharding(model).pool.lost == lost
    return whole(model), losses


def whole(model: nn.Module) -> Weights:
    found = {name: inspect(model, name) for name, _ in model.named_parameters()}
    return {name: x for name, x in found.items() if x is not None}


def same(got: Weights, want: Weights, within: float = 0.0) -> None:
    """Every weight equal, bit for bit unless told otherwise."""
    assert list(got) == list(want)
    for name in want:
        assert got[name].shape == want[name].shape and got[name].dtype == want[name].dtype, name
        if within:
            assert (got[name] - want[name]).abs().max().item() <= within, name
        else:
            assert torch.equal(got[name], want[name]), f"{name}: {(got[name] - want[name]).abs().max().item()}"


def check(
    task: Task, stages: Iterable[int] = (0, 1, 2, 3), ranks: int = 2, within: float = 0.0, **options: Any
) -> None:
    """The sharded twin ends where the plain process ends, at each stage, and the weights have moved."""
    want = plain(task, ranks)
    start = {name: p.detach().clone() for name, p in fresh(task).named_parameters()}
    assert any(not torch.equal(want[name], start[name]) for name in want)
    for stage in stages:
        for got, _ in run_ranks({"dp": ranks}, lambda mesh, s=stage: train(mesh, task, s, **options)):
            same(got, want, within)
