"""The peak as a fold over a program."""

from hypothesis import given, settings

from shardlab.plan import CATEGORIES, Plan, compile_plan, flat_groups, footprint, state_bytes
from shardlab.plan.blocks import saved_bytes
from tests.plan.plans import make, plans


@settings(deadline=None)
@given(plans())
def test_peak_is_at_least_the_resting_state(plan: Plan) -> None:
    found = footprint(compile_plan(plan), plan)
    assert tuple(found.by_category) == CATEGORIES
    assert found.resting_bytes == sum(state_bytes(plan).values())
    assert found.total_bytes >= found.resting_bytes + found.saved_bytes - max(found.saved_bytes, 0)
    assert all(size >= 0 for name, size in found.by_category.items() if name != "padding")
    assert (found.by_category["gathered"] > 0) <= (plan.zero == 3)


def test_saved_activations_are_those_of_all_layers() -> None:
    plan = make("llama")
    found = footprint(compile_plan(plan), plan)
    assert found.saved_bytes == sum(saved_bytes(layer, plan.batch) for layer in plan.model.layers)


def test_accumulation_does_not_raise_the_peak() -> None:
    once, twice = make("llama", zero=3), make("llama", zero=3, accumulation=2)
    assert footprint(compile_plan(once), once).total_bytes == footprint(compile_plan(twice), twice).total_bytes


def test_recompute_keeps_inputs_and_one_block() -> None:
    plan = make("llama", recompute="full")
    found = footprint(compile_plan(plan), plan)
    batch = plan.batch
    inputs = 2 * batch.tokens * 8 * 4
    rest = sum(saved_bytes(layer, batch) for layer in plan.model.layers if not layer.name.startswith("blocks"))
    block = saved_bytes(plan.model.layer("blocks.0"), batch)
    after_loss = saved_bytes(plan.model.layer("loss"), batch) + sum(
        saved_bytes(plan.model.layer(name), batch) for name in ("head.norm", "head.out"))  # fmt: skip
    assert found.saved_bytes == max(inputs + rest, inputs + rest - after_loss + block)


def test_prefetch_holds_two_units() -> None:
    early, late = make("llama", zero=3), make("llama", zero=3, prefetch=False)
    sizes = {u: sum(g.layout.nbytes for g in groups) for u, groups in flat_groups(early).items()}
    most = max(
        footprint(compile_plan(early), early).by_category["gathered"],
        footprint(compile_plan(late), late).by_category["gathered"],
    )
    assert 0 < most <= sum(sorted(sizes.values())[-2:])
