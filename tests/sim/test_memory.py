"""Memory of the worst rank."""

import pytest

from shardlab.plan import MeshShape, Plan, count, state_bytes
from shardlab.sim.memory import RESERVED, memory
from tests.plan.plans import make


def test_categories_sum_and_reserved_is_more_on_a_gpu() -> None:
    host, gpu = memory(make("llama", zero=3), 10**9, on_host=True), memory(make("llama", zero=3), 10**9, on_host=False)
    assert host.reserved == host.allocated == sum(host.by_category.values())
    assert gpu.reserved == int(gpu.allocated * RESERVED.value) > gpu.allocated
    assert gpu.by_category["activations"] < host.by_category["activations"]  # fused norms keep less
    assert host.at.startswith("0") and host.saved > 0


def test_fits_to_the_byte() -> None:
    needed = memory(make("llama"), 0, on_host=True).allocated
    assert memory(make("llama"), needed, on_host=True).fits
    assert not memory(make("llama"), needed - 1, on_host=True).fits


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_bare_count_has_states_only(zero: int) -> None:
    plan = Plan(count(1e6), MeshShape({"dp": 8}), zero=zero)
    found = memory(plan, 10**9, on_host=False)
    assert {k: v for k, v in found.by_category.items() if v} == {k: v for k, v in state_bytes(plan).items() if v}
    assert found.at == "" and found.saved == 0


def test_accumulation_changes_nothing() -> None:
    once, many = memory(make("gpt", zero=3), 0, True), memory(make("gpt", zero=3, accumulation=7), 0, True)
    assert once.by_category == many.by_category
