"""Faults planted on purpose: the comparisons that the parity tests make must see each of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import base
from shardlab.comm.communicator import SUM, ReduceOp
from shardlab.zero import Precision, stage0, stage1, stage3
from shardlab.zero.reduce import Reducer, Sent
from shardlab.zero.stage0 import Stage0
from shardlab.zero.stage1 import Stage1
from shardlab.zero.unit import FlatGroup, Member, Unit
from tests.oracle.full_batch import full_batch
from tests.oracle.rank_ordered import rank_ordered
from tests.oracle.recipe import Recipe, differing, largest_difference
from tests.zero.training import STAGES, lockstep

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


class Done:
    """A Pending of an operation that was never started."""

    def wait(self) -> None: ...

    def done(self) -> bool:
        return True


def drop_the_division(patch: Patch) -> None:
    made = Reducer.__init__

    def init(self: Reducer, *args: Any) -> None:
        made(self, *args)
        self.scale = 1.0

    patch.setattr(Reducer, "__init__", init)


def drop_the_all_reduce(patch: Patch) -> None:
    patch.setattr(Stage0, "start_reduce", lambda self, group, sending: (Done(), sending))


def drop_the_reduce_scatter(patch: Patch) -> None:
    def start_reduce(self: Stage1, group: FlatGroup, sending: Tensor) -> tuple[Done, Tensor]:
        return Done(), group.part(sending).clone()

    patch.setattr(Stage1, "start_reduce", start_reduce)


def swap_two_shards_of_a_sum(patch: Patch) -> None:
    right = Stage1.start_reduce

    def start_reduce(self: Stage1, group: FlatGroup, sending: Tensor) -> Any:
        n = group.layout.shard_numel
        first, second = sending[:n].clone(), sending[n : 2 * n].clone()
        sending[:n], sending[n : 2 * n] = second, first
        return right(self, group, sending)

    patch.setattr(Stage1, "start_reduce", start_reduce)


def own_the_shard_of_the_next_rank(patch: Patch) -> None:
    patch.setattr(Stage1, "index", property(lambda self: (self.comm.index + 1) % self.comm.size))


def skip_the_tied_gradient(patch: Patch) -> None:
    right = Reducer.take

    def take(self: Reducer, group: FlatGroup, member: Member, grad: Tensor) -> None:
        right(self, group, member, torch.zeros_like(grad) if member.name == "tok.weight" else grad)

    patch.setattr(Reducer, "take", take)


def drop_the_gather_after_the_step(patch: Patch) -> None:
    patch.setattr(Stage1, "after_step", Stage0.after_step)


def forget_earlier_micro_batches(patch: Patch) -> None:
    right = Reducer._add

    def add(self: Reducer, sent: Sent) -> None:
        sent.group.acc = None
        right(self, sent)

    patch.setattr(Reducer, "_add", add)


def drop_the_sum_of_the_norm(patch: Patch) -> None:
    right = base.BaseCommunicator.all_reduce

    def all_reduce(self: Any, x: Tensor, op: ReduceOp = SUM) -> None:
        if x.dtype is not torch.float64:
            right(self, x, op)

    patch.setattr(base.BaseCommunicator, "all_reduce", all_reduce)


def add_in_the_other_order(patch: Patch) -> None:
    right = base.combine

    def combine(chunks: Sequence[Tensor], out: Tensor, op: ReduceOp) -> None:
        right([chunk.clone() for chunk in reversed(chunks)], out, op)

    patch.setattr(base, "combine", combine)


def drop_the_sum_over_replicas(patch: Patch) -> None:
    made = Reducer.__init__

    def init(self: Reducer, *args: Any) -> None:
        made(self, *args)
        self.replicas = None

    patch.setattr(Reducer, "__init__", init)


def keep_old_compute_weights(patch: Patch) -> None:
    def refresh(units: list[Unit]) -> None: ...

    for module in (stage0, stage1, stage3):
        patch.setattr(module, "refresh", refresh)


PLAIN = Recipe("gpt", steps=2, micro_batches=2, clip=0.3)
MIXED = Recipe("gpt", steps=2, precision=Precision(compute="bf16"))
DP = {"dp": 3}
HYBRID = {"rep": 2, "dp": 2}
MUTANTS: list[tuple[Mutant, Sequence[int], Recipe, Mapping[str, int]]] = [
    (drop_the_division, STAGES, Recipe("gpt", steps=2), DP),
    (drop_the_all_reduce, (0,), PLAIN, DP),
    (drop_the_reduce_scatter, (1, 2, 3), PLAIN, DP),
    (swap_two_shards_of_a_sum, (1, 2, 3), PLAIN, DP),
    (own_the_shard_of_the_next_rank, (1, 2, 3), PLAIN, DP),
    (skip_the_tied_gradient, STAGES, PLAIN, DP),
    (drop_the_gather_after_the_step, (1, 2), PLAIN, DP),
    (forget_earlier_micro_batches, STAGES, PLAIN, DP),
    (drop_the_sum_of_the_norm, (1, 2, 3), PLAIN, DP),
    (add_in_the_other_order, STAGES, PLAIN, DP),
    (drop_the_sum_over_replicas, STAGES, PLAIN, HYBRID),
    (keep_old_compute_weights, STAGES, MIXED, DP),
]
CASES = [
    pytest.param(mutant, stage, recipe, axes, id=f"{mutant.__name__}-{stage}")
    for mutant, stages, recipe, axes in MUTANTS
    for stage in stages
]


def found(recipe: Recipe, axes: Mapping[str, int], stage: int) -> list[str]:
    """What the rank-ordered oracle finds wrong, on any rank."""
    expected = rank_ordered(recipe, [(0, 1), (2, 3)] if "rep" in axes else axes["dp"])
    ours = lockstep(recipe, axes, stage)
    return sorted({name for a, b in zip(ours, expected, strict=True) for name in differing(a, b)})


@pytest.mark.parametrize(("mutant", "stage", "recipe", "axes"), CASES)
def test_the_rank_ordered_oracle_sees(
    monkeypatch: Patch, mutant: Mutant, stage: int, recipe: Recipe, axes: Mapping[str, int]
) -> None:
    mutant(monkeypatch)
    assert any(name.startswith("params") for name in found(recipe, axes, stage))


@pytest.mark.parametrize(("recipe", "axes"), [(PLAIN, DP), (PLAIN, HYBRID), (MIXED, DP)])
def test_and_finds_nothing_without_a_mutant(recipe: Recipe, axes: Mapping[str, int]) -> None:
    assert found(recipe, axes, 3) == []


@pytest.mark.parametrize(
    "mutant",
    [drop_the_division, drop_the_reduce_scatter, swap_two_shards_of_a_sum, skip_the_tied_gradient],
)
def test_the_full_batch_sees(monkeypatch: Patch, mutant: Mutant) -> None:
    recipe = Recipe("gpt", "sgd", steps=5)
    expected = full_batch(recipe, 3)
    mutant(monkeypatch)
    ours = lockstep(recipe, 3, 3)[0]
    largest = max(grad.abs().max().item() for grad in expected.grads.values())
    assert largest_difference(ours.grads, expected.grads) > 2e-6 * largest
    assert largest_difference(ours.params, expected.params) > 1e-6


def test_the_comparison_sees_a_single_bit() -> None:
    ours, oracle = rank_ordered(PLAIN, 1)[0], rank_ordered(PLAIN, 1)[0]
    assert differing(ours, oracle) == []
    weight = ours.params["norm.weight"]
    weight[3] = torch.nextafter(weight[3], torch.tensor(2.0))
    ours.losses[0] = float(torch.nextafter(torch.tensor(ours.losses[0]), torch.tensor(0.0)))
    del ours.params["blocks.0.ln1.bias"]
    assert differing(ours, oracle) == ["losses", "params: blocks.0.ln1.bias", "params: norm.weight"]


def test_the_comparison_sees_a_dtype() -> None:
    ours, oracle = rank_ordered(PLAIN, 1)[0], rank_ordered(PLAIN, 1)[0]
    ours.params["norm.weight"] = nn.Parameter(ours.params["norm.weight"].double())
    assert differing(ours, oracle) == ["params: norm.weight"]
