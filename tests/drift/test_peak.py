"""Peak memory: the count of the dry run against the allocator's own events on real ranks.

For the decoders, whose peak is at the loss, the two are equal to the byte. The peak of the perceptron is in backward,
beside a reduction, where the real run holds more by two things that no fake tensor shows:

    without the native kernel a sum over ranks needs a temporary of the size of its result
    the mean of mse_loss keeps a storage of the size of its input (a peculiarity of PyTorch's CPU kernel)
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm import Mesh, dry_mesh
from shardlab.comm.solo import SoloWorld
from shardlab.engine.allocator import allocator_peak
from shardlab.engine.dry import dry_run, run_step, shard_plan
from shardlab.engine.live import LiveBytes
from shardlab.plan import OPTIMIZERS, MeshShape, Plan, Precision, compile_plan, footprint, gpt, llama, mlp
from tests.drift.sources import BF16

MLP_BOUND = 0.1
MODELS = {
    "gpt": gpt(layers=4, hidden=128, heads=4, vocab=512, positions=64),
    "llama": llama(layers=4, hidden=128, heads=4, kv_heads=2, ffn=344, vocab=512, positions=64),
    "mlp": mlp(widths=[256, 512, 512, 64]),
}


def plan_of(model: str, ranks: int = 2, **more: Any) -> Plan:
    sizes = {"seq": 1, "micro_batch": 64} if model == "mlp" else {"seq": 64, "micro_batch": 4}
    return Plan(MODELS[model], MeshShape({"dp": ranks}), **{**sizes, **more})


def measured(mesh: Mesh, plan: Plan) -> int:
    """Peak of the second step by the allocator's events."""
    torch.manual_seed(0)
    gc.collect()  # the release of an earlier model must not fall into the block
    with allocator_peak() as found:
        model, optimizer = shard_plan(plan, mesh)
        run_step(plan, model, optimizer)
        found.restart()
        run_step(plan, model, optimizer)
    return found.peak_bytes


def counted(mesh: Mesh, plan: Plan) -> tuple[int, int]:
    """Resting and peak bytes of the second step by storages."""
    torch.manual_seed(0)
    with LiveBytes() as live:
        model, optimizer = shard_plan(plan, mesh)
        run_step(plan, model, optimizer)
        live.restart()
        run_step(plan, model, optimizer)
        return live.now_bytes, live.peak_bytes


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_dry_peak_of_a_decoder_is_the_allocators(mpi_ranks: Any, model: str, stage: int) -> None:
    plan = plan_of(model, zero=stage, **({"precision": BF16} if stage % 2 else {}))
    assert mpi_ranks(2)(measured, plan) == [dry_run(plan, rank).peak_bytes for rank in range(2)]


def test_dry_peak_with_recompute_is_the_allocators(mpi_ranks: Any) -> None:
    plan = plan_of("gpt", zero=3, recompute="full")
    assert mpi_ranks(2)(measured, plan) == [dry_run(plan, rank).peak_bytes for rank in range(2)]


@pytest.mark.parametrize("stage", range(4))
def test_dry_peak_of_a_perceptron_lies_below_by_a_bound(mpi_ranks: Any, stage: int) -> None:
    plan = plan_of("mlp", zero=stage, **({"precision": BF16} if stage % 2 else {}))
    for rank, peak in enumerate(mpi_ranks(2)(measured, plan)):
        assert (1 - MLP_BOUND) * peak <= dry_run(plan, rank).peak_bytes <= peak


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_fake_tensors_are_alive_as_long_as_real_ones(model: str) -> None:
    plan = plan_of(model, ranks=1, zero=3)
    real = counted(SoloWorld().mesh(plan.mesh), plan)
    with FakeTensorMode():
        fake = counted(dry_mesh(plan.mesh.sizes), plan)
    assert fake == real
    assert real[1] > real[0] > 0


FORMULA_BOUND = 0.03


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stage", range(4))
def test_formula_of_the_peak_where_states_rule(stage: int, optimizer: str) -> None:
    spec = mlp(widths=[64, 1024, 8])
    for precision in (Precision(), BF16, Precision.named("bf16")):
        plan = Plan(spec, MeshShape({"dp": 2}), zero=stage, precision=precision, optimizer=optimizer)
        said = footprint(compile_plan(plan).actions, plan).total_bytes
        assert abs(said / dry_run(plan).peak_bytes - 1) <= FORMULA_BOUND


DECODERS = {
    "gpt": gpt(layers=4, hidden=256, heads=4, vocab=8000, positions=512),
    "llama": llama(layers=4, hidden=256, heads=4, kv_heads=2, ffn=688, vocab=8000, positions=512),
}


@pytest.mark.parametrize(("stage", "recompute"), [(0, "none"), (1, "full"), (2, "none"), (3, "none"), (3, "full")])
@pytest.mark.parametrize(("model", "seq"), [("gpt", 16), ("gpt", 512), ("llama", 512)])
def test_formula_of_the_peak_of_decoders(model: str, seq: int, stage: int, recompute: str) -> None:
    plan = Plan(DECODERS[model], MeshShape({"dp": 8}), zero=stage, precision=Precision.named("bf16"), seq=seq,
                recompute=recompute)  # fmt: skip
    said = footprint(compile_plan(plan).actions, plan).total_bytes
    assert abs(said / dry_run(plan).peak_bytes - 1) <= FORMULA_BOUND
