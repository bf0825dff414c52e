"""Tensors saved for backward: the model's weights as places, all else as other people's hooks want it."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import shard
from tests.zero.plain import Task, at_rest, check, fresh, numbers, sharding


class Offloading(nn.Module):
    """Uses somebody's saved-tensor hooks around one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layers[0](x))
        with save_on_cpu():
            x = torch.tanh(self.layers[1](x))
        return self.layers[2](x)


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


def offloaded(model: nn.Module, step: int, rank: int) -> Tensor:
    with save_on_cpu():
        return loss(model, step, rank)


@pytest.mark.parametrize("stage", [0, 3])
def test_hooks_of_others_around_and_inside_the_model(stage: int) -> None:
    check(Task(layers, offloaded), stages=[stage])
    check(Task(Offloading, loss), stages=[stage])


@pytest.mark.parametrize("make", [layers, Offloading])
def test_hooks_of_others_see_activations_and_no_weight(make: Callable[[], nn.Module], monkeypatch: object) -> None:
    """A weight that they copied would be held whole until backward, however it is sharded."""
    seen: list[tuple[int, ...]] = []

    class Watching(saved_tensors_hooks):
        def __init__(self) -> None:
            super().__init__(lambda t: (seen.append(tuple(t.shape)), t)[1], lambda t: t)

    monkeypatch.setattr(f"{__name__}.save_on_cpu", Watching)  # type: ignore[attr-defined]

    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(Task(make, loss)), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        value = offloaded(model, 0, 0) if make is layers else loss(model, 0, 0)
        assert sharding(model).pool.lent_bytes == 0, "a weight stays gathered"
        value.backward()
        at_rest(model)

    run_ranks({"dp": 1}, body)
    assert (3, 6) in seen and (6, 6) not in seen


def test_the_graph_holds_no_gathered_buffer_between_forward_and_backward() -> None:
    def body(mesh: Mesh) -> None:
        model, _ = shard(fresh(Task(layers, loss)), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        outs = [model(numbers(3, 6, step=step, rank=0)) for step in range(4)]
        gc.collect()
        pool = sharding(model).pool
        assert pool.lent_bytes == 0 and pool.lost == 0
        unit_bytes = 4 * sharding(model).units[0].numel
        assert pool.kept_bytes <= 2 * unit_bytes, "the unit in use and the one fetched ahead"
        sum(out.sum() for out in outs).backward()
        assert pool.lost == 0 and pool.kept_bytes <= 4 * unit_bytes
        at_rest(model)

    run_ranks({"dp": 2}, body)


def test_two_sharded_models_one_calling_the_other() -> None:
    """Each keeps its own weights as places; neither is a module of the other."""

    def body(mesh: Mesh) -> None:
        task = Task(layers, loss)
        outer, _ = shard(fresh(task), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        inner, _ = shard(fresh(task), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        outer[1].register_forward_hook(lambda m, args, out: inner(out))
        outer(numbers(3, 6, step=0, rank=0)).sum().backward()
        for model in (outer, inner):
            assert sharding(model).pool.lost == 0
            at_rest(model)

    run_ranks({"dp": 2}, body)
