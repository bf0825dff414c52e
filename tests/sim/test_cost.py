"""Seconds of actions, against sums by hand."""

from dataclasses import replace

import pytest

from shardlab.plan import Action, step_bytes
from shardlab.plan.blocks import forward_flops, saved_bytes
from shardlab.sim.cost import ELEMENTWISE, LAUNCH_S, LINK_FRACTION, TRAINING_FRACTION, Cost
from tests.plan.plans import make
from tests.sim.machine import round_machine


def act(text: str) -> Action:
    return Action.parse(text)


def test_compute_is_products_and_element_wise_work() -> None:
    plan = make("llama", dp=4)
    layer, batch = plan.model.layer("blocks.0"), replace(plan.batch, kernels="cuda")
    products = forward_flops(layer, batch) / (1e15 * TRAINING_FRACTION.value)
    moved = ELEMENTWISE.value * saved_bytes(layer, batch) / 1e12
    cost = Cost(plan, round_machine(), 1)
    assert cost.seconds(act("0F0@blocks.0")) == pytest.approx(products + moved + LAUNCH_S.value)
    assert cost.seconds(act("0B0@blocks.0")) == pytest.approx(2 * (products + moved) + LAUNCH_S.value)


def test_ranks_of_a_shared_host_split_cores_and_bandwidth() -> None:
    plan = make("llama", dp=4)
    alone = Cost(make("llama", dp=1), round_machine(shared=True), 1)
    four = Cost(plan, round_machine(shared=True), 1)
    assert four.seconds(act("0F0@blocks.0")) == pytest.approx(4 * alone.seconds(act("0F0@blocks.0")))


def test_a_collective_is_bytes_and_hops() -> None:
    plan = make("mlp", dp=4, zero=3)
    inside = Cost(plan, round_machine(), 1)
    wire = 3 * 16 * 4  # (N - 1) x shard
    assert inside.seconds(act("0UNSHARD0@layers.0")) == pytest.approx(wire / (1e11 * LINK_FRACTION.value) + 3e-6)
    across = Cost(plan, round_machine(), 2)
    want = wire / (1e10 * LINK_FRACTION.value) + 1e-6 + 1e-5
    assert across.seconds(act("0UNSHARD0@layers.0")) == pytest.approx(want)
    assert Cost(make("mlp", dp=1, zero=3), round_machine(), 1).seconds(act("0UNSHARD0@layers.0")) == 0


def test_optimizer_is_memory_bound_and_free_costs_nothing() -> None:
    plan = make("mlp", dp=4, zero=3)
    cost = Cost(plan, round_machine(), 1)
    assert cost.seconds(act("0STEP")) == step_bytes(plan) / 1e12
    assert cost.seconds(act("0RESHARD0@layers.0")) == 0


def test_a_missing_dtype_is_named() -> None:
    cost = Cost(make("mlp"), replace(round_machine(), peak_flops_per_s={}), 1)
    assert cost.peak_flops_per_s is None
    with pytest.raises(ValueError, match="Round numbers has no units for fp32"):
        cost.seconds(act("0F0@layers.0"))
