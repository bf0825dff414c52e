"""`shard`: what it takes, what it refuses by name, and that the optimizer goes on as the user knows it."""

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard
from tests.zero.gain import STAGES, Net, loss, refused, sgd
from tests.zero.plain import Task, Weights, check, fresh, numbers, plain, same, sharding, whole


def test_an_optimizer_that_misses_a_parameter_or_holds_a_stranger_is_refused_by_name() -> None:
    model = Net()
    refused(
        model,
        lambda p: torch.optim.SGD([model.first.weight, model.first.bias], lr=0.1),
        r"'gain'.*in no optimizer group",
    )
    refused(
        model,
        torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3, 7))], lr=0.1),
        r"not the model's.*\(3, 7\)",
    )
    refused(model, torch.optim.SGD(Net().parameters(), lr=0.1), r"holds 5 parameters that are not the model's")
    refused(model, 0.1, "optimizer is float", error=TypeError)
    refused(model, lambda p: list(p), "factory returned list", error=TypeError)


class Lamb(torch.optim.Optimizer):
    """Scales each layer's update by a ratio of norms of the whole layer."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: Lamb(p),
        lambda p: torch.optim.LBFGS(p),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.Muon([q for q in p if q.ndim == 2]),
        lambda p: torch.optim.SparseAdam(p),
    ],
    ids=["Lamb", "LBFGS", "Adafactor", "Muon", "SparseAdam"],
)
def test_an_optimizer_that_needs_whole_tensors_is_refused_by_name(stage: int, make: Callable, request: object) -> None:
    name = request.node.callspec.id.split("-")[0]  # type: ignore[attr-defined]
    refused(Net(), make, rf"optimizer {name} at stage {stage}.*elementwise.*stage 0", stage=stage)


def test_a_class_of_ones_own_may_say_that_it_is_elementwise() -> None:
    class Mine(torch.optim.SGD):
        shardlab_elementwise = True

    check(Task(Net, loss, lambda p: Mine(p, lr=0.1)))


def test_a_factory_may_look_at_shapes_more_than_once() -> None:
    """Its argument has full shapes and can be walked twice."""

    def groups(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        decayed = [p for p in params if p.ndim >= 2]
        others = [p for p in params if p.ndim < 2]
        assert {p.shape for p in decayed} == {(5, 6), (2, 5)}
        return torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01
        )

    def body(mesh: Mesh, stage: int) -> Weights:
        model, optimizer = shard(fresh(Task(Net, loss)), groups, mesh["dp"], stage=stage)
        for step in range(3):
            loss(model, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(Task(Net, loss, lambda p: groups(list(p))), 2)
    for stage in (0, 1, 2, 3):
        for got in run_ranks({"dp": 2}, body, stage):
            same(got, want)


OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


@STAGES
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_instance_keeps_the_state_it_has(stage: int, name: str) -> None:
    """Two steps in plain torch, then sharded: as if nothing had happened, the scalar parameter included."""
    task = Task(Net, loss, OPTIMIZERS[name])

    def begun() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fresh(task)
        optimizer = task.optimizer(model.parameters())
        for step in range(2):
            loss(model, 10 + step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    def body(mesh: Mesh) -> Weights:
        model, optimizer = begun()
        model, returned = shard(model, optimizer, mesh["dp"], stage=stage)
        assert returned is optimizer
        for step in range(2):
            loss(model, step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    model, optimizer = begun()
    for step in range(2):
        loss(model, step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    want = {key: p.detach() for key, p in model.named_parameters()}
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@STAGES
def test_schedulers_hooks_and_groups_of_the_instance_go_on_working(stage: int) -> None:
    def run(
        model: nn.Module, optimizer: torch.optim.Optimizer, rank: int | None
    ) -> tuple[Weights, list[float], list[str]]:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        called: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
        optimizer.register_step_post_hook(lambda *_: called.append("post"))
        rates = []
        for step in range(4):
            loss(model, step, 0).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            rates.append(schedule.get_last_lr()[0])
        weights = {n: p.detach() for n, p in model.named_parameters()} if rank is None else whole(model)
        return weights, rates, called

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fresh(Task(Net, loss))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def body(mesh: Mesh) -> tuple[Weights, list[float], list[str]]:
        model, optimizer = make()
        shard(model, optimizer, mesh["dp"], stage=stage)
        return run(model, optimizer, mesh["dp"].index)

    want, rates, called = run(*make(), None)
    for got, got_rates, got_called in run_ranks({"dp": 2}, body):
        same(got, want)
        assert (got_rates, got_called) == (rates, called) and called == ["pre", "post"] * 4


@STAGES
def test_a_rank_that_owns_nothing_takes_part(stage: int) -> None:
    """One element on four ranks: three own none of it."""

    def make() -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    check(Task(make, lambda m, s, r: m(numbers(2, 1, step=s, rank=r)).square().mean()), stages=[stage], ranks=4)


def test_sharding_draws_no_random_number() -> None:
    def body(mesh: Mesh) -> None:
        before = torch.get_rng_state()
        shard(fresh(Task(Net, loss)), sgd, mesh["dp"], stage=3)
        torch.manual_seed(0)
        Net()
        after = torch.get_rng_state()
        model = fresh(Task(Net, loss))
        shard(model, sgd, mesh["dp"], stage=3)
        assert torch.equal(torch.get_rng_state(), after) and before.shape == after.shape

    run_ranks({"dp": 1}, body)


def test_ranks_that_start_differently_are_told_so() -> None:
    def body(mesh: Mesh) -> None:
        model = fresh(Task(Net, loss))
        if mesh["dp"].index == 1:
            with torch.no_grad():
                model.last.weight[0, 0] += 1
        with pytest.raises(ValueError, match=r"'last\.weight'.*rank 1.*rank 0"):
            shard(model, sgd, mesh["dp"], stage=3)

    run_ranks({"dp": 2}, body)


@STAGES
def test_one_rank_is_plain_training(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = shard(Net(), sgd, mesh["dp"], stage=stage)
        loss(model, 0, 0).backward()
        assert inspect(model, "gain", "grad") is not None and sharding(model).stage.number == stage

    run_ranks({"dp": 1}, body)
