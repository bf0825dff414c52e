"""Events of modules and parameters, and what they do to units."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, shard
from shardlab.zero.unit import UnitState
from tests.zero.plain import Task, at_rest, fresh, numbers, sharding


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))


TASK = Task(layers, lambda m, s, r: m(numbers(3, 6, step=s, rank=r)).square().mean())


def start(mesh: Mesh, stage: int = 3) -> nn.Module:
    return shard(fresh(TASK), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=stage)[0]


def states(model: nn.Module) -> list[bool]:
    return [unit.state is UnitState.LIVE for unit in sharding(model).units]


def test_gradients_leave_as_each_units_backward_ends() -> None:
    """A unit is free before the unit below it has its gradients."""

    def body(mesh: Mesh) -> None:
        model = start(mesh)
        seen: dict[int, list[bool]] = {}
        for at in (0, 1):
            model[at].register_full_backward_hook(lambda m, gi, go, at=at: seen.__setitem__(at, states(model)))
        out = model(numbers(3, 6, step=0, rank=0).requires_grad_())
        assert states(model) == [False] * 3
        out.sum().backward()
        assert seen[1][2] is False and seen[0][2] is False and seen[0][1] is False
        at_rest(model)

    run_ranks({"dp": 2}, body)


def test_the_hook_of_a_parameter_takes_its_gradient_away() -> None:
    def body(mesh: Mesh, stage: int) -> None:
        model = start(mesh, stage)
        seen: list[bool] = []
        model[0].register_full_backward_pre_hook(lambda m, go: seen.append(model[2].weight.grad is None))
        model(numbers(3, 6, step=0, rank=0).requires_grad_()).sum().backward()
        assert seen == [True]

    for stage in (0, 1, 2, 3):
        run_ranks({"dp": 2}, body, stage)


def test_floating_inputs_are_cast_wherever_they_stand() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: dict[str, list[Tensor]], *, ids: Tensor, y: Tensor) -> Tensor:
            assert x["a"][0].dtype == y.dtype == torch.bfloat16 and ids.dtype == torch.int64
            return self.layer(x["a"][0]) + y.sum() + ids.sum()

    def body(mesh: Mesh) -> None:
        model, _ = shard(
            Takes(), lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3, precision=Precision(compute="bf16")
        )
        out = model({"a": [torch.ones(1, 6)]}, ids=torch.tensor([1]), y=torch.ones(2))
        assert out.dtype == torch.bfloat16

    torch.manual_seed(0)
    run_ranks({"dp": 1}, body)


def test_submodules_called_alone_train_as_well() -> None:
    """As in `model.encode(x)`: the root's own hooks never fire."""

    def body(mesh: Mesh) -> None:
        model = start(mesh)
        alone = fresh(TASK)
        for step in range(3):
            x = numbers(3, 6, step=step, rank=0)
            got, want = model[2](model[0](x)), alone[2](alone[0](x))
            assert torch.equal(got, want)
            got.sum().backward()
            at_rest(model)
        with torch.no_grad():
            for _ in range(3):
                model[1](x)
        at_rest(model)

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_forward_that_is_never_followed_by_a_backward_leaves_no_trace(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model = start(mesh, stage)
        for step in range(3):
            TASK.loss(model, step, 0)
        at_rest(model)
        TASK.loss(model, 0, 0).backward()
        at_rest(model)

    run_ranks({"dp": 2}, body)


def test_calling_sub_modules_for_ever_remembers_no_more_than_a_bounded_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardlab.zero.order._LONGEST", 10)

    def body(mesh: Mesh) -> None:
        model = start(mesh)
        gatherer = sharding(model).gatherer
        assert gatherer is not None
        x = numbers(3, 6, step=0, rank=0)
        with torch.no_grad():
            for _ in range(25):
                assert torch.equal(model[0](model[2](x)), fresh(TASK)[0](fresh(TASK)[2](x)))
        assert len(gatherer.order._now) <= 10
        at_rest_of_values(model)

    run_ranks({"dp": 2}, body)


def at_rest_of_values(model: nn.Module) -> None:
    """At most the next unit is under way."""
    assert sum(unit.state is not UnitState.SHARDED for unit in sharding(model).units) <= 1
    sharding(model).hooks.before_step()
