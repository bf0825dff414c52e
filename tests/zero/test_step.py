import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import NonFiniteGradientError, Precision, gathered, inspect, shard
from shardlab.zero.sharding import sharding_of
from tests.zero.training import STAGES


def model_of_ones() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    for p in model.parameters():
        nn.init.ones_(p)
    return model


def whole(model: nn.Module) -> list[float]:
    with gathered(model):
        return [x for p in model.parameters() for x in p.flatten().tolist()]


def with_bad_gradient(mesh: Mesh, stage: int, bad: float, precision: Precision | None = None) -> dict[str, Any]:
    """Two steps; in the first, rank 1 has a gradient that is not finite."""
    model, optimizer = shard(
        model_of_ones(), lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=stage, precision=precision
    )
    warned, after, left = [], [], []
    for factor in (bad if mesh.rank == 1 else 1.0, 1.0):
        (model(torch.ones(1, 2)).sum() * factor).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        warned += [str(w.message) for w in caught]
        after.append(whole(model))
        left.append(inspect(model, "1.weight", "grad"))
        optimizer.zero_grad()
    return {"warned": warned, "after": after, "left": left, "skipped": sharding_of(model).step.skipped}


@pytest.mark.parametrize("precision", [None, Precision(compute="bf16")], ids=["own", "bf16"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_that_is_not_finite_skips_the_step_everywhere(
    stage: int, bad: float, precision: Precision | None
) -> None:
    for seen in run_ranks({"dp": 3}, with_bad_gradient, stage, bad, precision):
        assert len(seen["warned"]) == seen["skipped"] == 1
        assert "the gradient of parameter '0.weight' is not finite on some rank" in seen["warned"][0]
        assert seen["left"][0] is None, "it is dropped"
        assert seen["after"][0] == [1.0] * 10
        assert all(x < 1.0 for x in seen["after"][1]), "the next step is taken"


@pytest.mark.parametrize("stage", STAGES)
def test_replicas_skip_together(stage: int) -> None:
    def rank(mesh: Mesh) -> int:
        model, optimizer = shard(
            model_of_ones(), lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=stage, replicas=mesh["rep"]
        )
        (model(torch.ones(1, 2)).sum() * (math.nan if mesh.rank == 3 else 1.0)).backward()
        with pytest.warns(UserWarning, match=r"'0.weight' is not finite"):
            optimizer.step()
        return sharding_of(model).step.skipped

    assert run_ranks({"rep": 2, "dp": 2}, rank) == [1] * 4


@pytest.mark.parametrize("stage", STAGES)
def test_or_raises(stage: int) -> None:
    precision = Precision(non_finite="raise")
    with pytest.raises(NonFiniteGradientError, match=r"'0.weight' is not finite .*the step was not taken"):
        run_ranks({"dp": 2}, with_bad_gradient, stage, math.nan, precision)


@pytest.mark.parametrize("stage", STAGES)
def test_or_is_let_through(stage: int) -> None:
    for seen in run_ranks({"dp": 2}, with_bad_gradient, stage, math.nan, Precision(non_finite="ignore")):
        assert seen["warned"] == []
        assert all(math.isnan(x) for x in seen["after"][1])


def one_bad_layer(mesh: Mesh, stage: int) -> None:
    """Only the second layer's gradient is bad, and on one rank."""
    model, optimizer = shard(model_of_ones(), lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=stage)
    hidden = model[0](torch.ones(1, 2))
    broken = hidden.detach() * (math.inf if mesh.rank == 2 else 1.0)
    (model[1](broken).sum() * 0.5 + hidden.sum()).backward()
    optimizer.step()


@pytest.mark.parametrize("stage", STAGES)
def test_the_parameter_that_is_named_is_the_first_bad_one(stage: int) -> None:
    with pytest.warns(UserWarning, match=r"'1.weight' is not finite"):
        run_ranks({"dp": 3}, one_bad_layer, stage)


def changed(mesh: Mesh, stage: int, change: str) -> None:
    model = model_of_ones()
    model[1].weight.requires_grad_(change == "freeze")
    model, optimizer = shard(model, lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=stage)
    model[1].weight.requires_grad_(change != "freeze")
    optimizer.step()


@pytest.mark.parametrize(("change", "now"), [("freeze", "now False"), ("thaw", "now True")])
@pytest.mark.parametrize("stage", [0, 3])
def test_what_is_trained_is_fixed(stage: int, change: str, now: str) -> None:
    with pytest.raises(RuntimeError, match=rf"parameter '1.weight': requires_grad was .* and is\s+{now}"):
        run_ranks({"dp": 2}, changed, stage, change)


def by_closure(mesh: Mesh, stage: int, closed: bool, keyword: bool, precision: Precision | None) -> list[Tensor]:
    model, optimizer = shard(
        model_of_ones(), lambda p: torch.optim.AdamW(p, lr=0.5), mesh["dp"], stage=stage, precision=precision
    )
    dtype, calls = torch.float32 if precision is None else torch.bfloat16, []

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss: Tensor = model(torch.arange(2.0).view(1, 2).to(dtype) + mesh.rank).square().sum()
        loss.backward()
        return loss

    found = []
    for _ in range(3):
        if closed:
            with torch.no_grad():
                loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        found.append(torch.as_tensor(loss).detach().clone())
    assert len(calls) == 3
    return [*found, inspect(model, "0.weight"), inspect(model, "1.weight")]


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("precision", [None, Precision(compute="bf16", accumulate="bf16")], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_closure_gives_what_backward_and_step_give(stage: int, precision: Precision | None, keyword: bool) -> None:
    """Trainers pass a closure to every step; gradients of other dtypes are cast after it has run."""
    want = run_ranks({"dp": 2}, by_closure, stage, False, keyword, precision)
    got = run_ranks({"dp": 2}, by_closure, stage, True, keyword, precision)
    assert not torch.equal(want[0][0], want[0][2])
    for mine, theirs in zip(got, want, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def late_master(mesh: Mesh, stage: int) -> tuple[list[float], Tensor | None]:
    precision = Precision(compute="bf16")
    model, optimizer = shard(
        model_of_ones(), lambda p: torch.optim.SGD(p, lr=1e-3), mesh["dp"], stage=stage, precision=precision
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return whole(model), inspect(model, "1.weight", "master")


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_masters_rounded(stage: int) -> None:
    """The gradient of the last layer is 3: 1 - 0.003 in the master, 1 - 0.0039 in bf16."""
    for weights, master in run_ranks({"dp": 2}, late_master, stage):
        assert master is not None and master.dtype is torch.float32
        assert master.flatten().tolist() == pytest.approx([0.997] * 4, abs=1e-7)
        assert weights[-4:] == [0.99609375] * 4


def counted(mesh: Mesh) -> list[int]:
    model, optimizer = shard(model_of_ones(), lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=3)
    found = [mesh.recorder.step]
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        found.append(mesh.recorder.step)
    return found


def test_steps_are_counted_for_the_ledger() -> None:
    assert run_ranks({"dp": 2}, counted) == [[0, 1, 2, 3]] * 2


def grown(mesh: Mesh, stage: int, how: str) -> None:
    model, optimizer = shard(model_of_ones(), lambda p: torch.optim.SGD(p, lr=0.5), mesh["dp"], stage=stage)
    if how == "group":
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    elif how == "assign":
        model[1].weight = nn.Parameter(torch.ones(2, 2))
    else:
        model.load_state_dict({k: torch.ones_like(v) for k, v in model_of_ones().state_dict().items()}, assign=True)
    optimizer.step()


@pytest.mark.parametrize(
    ("how", "said"),
    [("group", "add_param_group"), ("assign", "'1.weight' was replaced"), ("load", "'0.weight' was replaced")],
)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_parameters_that_came_after_shard_are_told(stage: int, how: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        run_ranks({"dp": 2}, grown, stage, how)
