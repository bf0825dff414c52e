"""A fault planted in one source is seen by the two others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from shardlab.comm import run_ranks
from shardlab.comm.dry import DryCommunicator, DryRequest
from shardlab.comm.operation import Rounds
from shardlab.plan.dtypes import itemsize
from shardlab.plan.flat import FlatGroup
from shardlab.zero.reduce import Reducer
from shardlab.zero.stage1 import Stage1
from shardlab.zero.stage3 import Stage3
from shardlab.zero.unit import FlatGroup as RealGroup
from tests.drift.sources import Counts, differences, dry, formula, plan_of, real

Plant = Callable[[pytest.MonkeyPatch], None]
PLAN = plan_of("gpt", 3, zero=3)


class Done:
    """A call that nobody made."""

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True


def no_padding(patch: pytest.MonkeyPatch) -> None:
    def shard_bytes(group: FlatGroup, dtype: str) -> int:
        return group.layout.param_numel * itemsize(dtype) // group.layout.shards

    patch.setattr(FlatGroup, "shard_bytes", shard_bytes)


def one_gather_uncounted(patch: pytest.MonkeyPatch) -> None:
    whole, seen = DryCommunicator._all_gather, []

    def all_gather(comm: DryCommunicator, out: Tensor, shard: Tensor) -> Rounds:
        for request in whole(comm, out, shard):
            seen.append(out.numel())
            yield DryRequest([]) if comm.recorder.label.name == "blocks.1" else request

    patch.setattr(DryCommunicator, "_all_gather", all_gather)


def one_gather_twice(patch: pytest.MonkeyPatch) -> None:
    whole = DryCommunicator.start_all_gather

    def start(comm: DryCommunicator, out: Tensor, shard: Tensor) -> Any:
        if comm.recorder.label.name == "head.norm":
            whole(comm, out, shard).wait()
        return whole(comm, out, shard)

    patch.setattr(DryCommunicator, "start_all_gather", start)


def shard_too_large(patch: pytest.MonkeyPatch) -> None:
    settle = Stage3.settle

    def settle_larger(stage: Stage3, group: RealGroup, full: Tensor) -> None:
        settle(stage, group, full)
        room = torch.empty(group.shard.numel() + 16, dtype=group.shard.dtype)[: group.shard.numel()]
        group.shard = room.copy_(group.shard)

    patch.setattr(Stage3, "settle", settle_larger)


def one_reduce_missing(patch: pytest.MonkeyPatch) -> None:
    whole = Stage1.start_reduce

    def start_reduce(stage: Stage1, group: RealGroup, sending: Tensor) -> Any:
        if group.unit.name == "blocks.1":
            return Done(), group.part(sending).clone()
        return whole(stage, group, sending)

    patch.setattr(Stage1, "start_reduce", start_reduce)


def reduces_in_registration_order(patch: pytest.MonkeyPatch) -> None:
    made = Reducer.__init__

    def init(reducer: Reducer, *args: Any) -> None:
        made(reducer, *args)
        reducer.order = reducer.order[::-1]

    patch.setattr(Reducer, "__init__", init)


def counts(rank: int = 0) -> dict[str, Counts]:
    return {"formula": formula(PLAN, rank), "dry": dry(PLAN, rank), "real": run_ranks({"dp": 3}, real, PLAN)[rank]}


def pairs(found: dict[str, Counts]) -> set[str]:
    """The pairs of sources that disagree."""
    names = ("formula dry", "formula real", "dry real")
    return {pair for pair in names if differences(**{name: found[name] for name in pair.split()})}


def test_without_a_mutant_nothing_differs() -> None:
    assert pairs(counts()) == set()


@pytest.mark.parametrize(
    ("plant", "odd"), [(no_padding, "formula"), (one_gather_uncounted, "dry"), (one_gather_twice, "dry")]
)
def test_a_mutant_in_one_source_is_caught_by_both_others(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, odd: str
) -> None:
    plant(monkeypatch)
    assert pairs(counts()) == {pair for pair in ("formula dry", "formula real", "dry real") if odd in pair.split()}


@pytest.mark.parametrize("plant", [shard_too_large, one_reduce_missing, reduces_in_registration_order])
def test_a_mutant_in_the_real_run_is_caught(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    healthy = {"formula": formula(PLAN, 0), "dry": dry(PLAN, 0)}
    plant(monkeypatch)
    ran = run_ranks({"dp": 3}, real, PLAN)[0]
    assert pairs({**healthy, "real": ran}) == {"formula real", "dry real"}
