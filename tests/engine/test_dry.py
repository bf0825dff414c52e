"""The dry run: what it counts, and that a very large one is small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from shardlab.engine.build import build
from shardlab.engine.dry import OPTIMIZERS, dry_run, saved_for_backward
from shardlab.plan import MeshShape, Plan, Precision, count, gpt, llama, mlp
from shardlab.plan.optimizer import OPTIMIZERS as DESCRIBED

GPT = gpt(layers=2, hidden=16, heads=2, vocab=37, positions=8)


def test_what_a_rank_of_four_holds_and_sends() -> None:
    found = dry_run(Plan(GPT, MeshShape({"dp": 4}), zero=3, seq=8), rank=1)
    assert sum(found.state.values()) == sum(found.held.values())
    assert found.resting_bytes >= sum(found.held.values()) + found.pooled_bytes
    assert found.peak_bytes > found.resting_bytes + found.saved_bytes / 2
    assert found.start_bytes > 4 * GPT.numel
    assert found.wire_bytes["dp"] == sum(call["wire_bytes"] for call in found.calls.values())
    assert found.calls["reduce_scatter"]["count"] == len(GPT.units)
    json.dumps(found.to_dict())


def test_rest_holds_nothing_but_state_pool_and_placeholders() -> None:
    """A leak of one activation or gradient would show."""
    for zero in range(4):
        found = dry_run(Plan(GPT, MeshShape({"dp": 4}), zero=zero, seq=8, micro_batch=3))
        extra = found.resting_bytes - sum(found.held.values()) - found.pooled_bytes
        assert 0 <= extra <= 2 * 4 * len(GPT.params), zero  # a freed parameter and a hidden gradient: an element each


def test_no_memory_is_touched() -> None:
    huge = gpt(layers=2, hidden=65536, heads=2, vocab=51200, positions=8)
    found = dry_run(Plan(huge, MeshShape({"dp": 1}), seq=8))
    assert found.held["parameters"] > 4 * 2**36


@pytest.mark.parametrize("optimizer", DESCRIBED)
def test_optimizers_keep_what_is_described(optimizer: str) -> None:
    plan = Plan(mlp(widths=[20, 64, 48, 10]), MeshShape({"dp": 3}), zero=2, optimizer=optimizer, micro_batch=2)
    from shardlab.plan import held_bytes

    assert optimizer in OPTIMIZERS
    assert dry_run(plan, 1).held == held_bytes(plan, 1)


def test_one_block_is_a_unit_too() -> None:
    spec = llama(layers=1, hidden=16, heads=2, ffn=24, vocab=13)
    found = dry_run(Plan(spec, MeshShape({"dp": 2}), zero=3, seq=4))
    assert {span.name for span in found.ledger if span.op == "reduce_scatter"} == {unit.name for unit in spec.units}


class Own(nn.Module):
    """A model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.out(self.table(ids)).flatten(0, 1), targets.flatten())


def test_a_model_of_ones_own() -> None:
    plan = Plan(count(90), MeshShape({"dp": 2}), zero=2, seq=6)
    found = dry_run(plan, make=Own)
    assert found.state["parameters"] == 4 * 90
    assert found.calls["reduce_scatter"]["count"] == 2


def test_saved_tensors_leave_out_weights_and_tables() -> None:
    spec = llama(layers=2, hidden=16, heads=2, ffn=24, vocab=13)
    model, ids = build(spec), torch.zeros(3, 5, dtype=torch.int64)
    with saved_for_backward(model) as saved:
        loss = model(ids, ids.clone())
        kept = saved.now_bytes
    from shardlab.plan import Batch
    from shardlab.plan.blocks import saved_bytes

    assert kept == sum(saved_bytes(layer, Batch(3, 5)) for layer in spec.layers)
    loss.backward()
    del loss
    assert saved.now_bytes <= ids.nbytes * 2, "only inputs live on"


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"rank is 4, valid are 0\.\.3"):
        dry_run(Plan(GPT, MeshShape({"dp": 4}), seq=8), rank=4)


LARGE = """
from pathlib import Path
from shardlab.engine.dry import dry_run
from shardlab.plan import MeshShape, Plan, Precision, preset
plan = Plan(preset("llama3-70b"), MeshShape({"dp": 1024}), zero=3, precision=Precision.named("bf16"), recompute="full",
            seq=4096)
found = dry_run(plan)
# The high-water mark of this program alone: ru_maxrss starts with what the process that launched it held.
peak_kib = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line[:5] == "VmHWM")
print(found.state["parameters"], found.held["optimizer"], peak_kib)
"""


def test_rank_0_of_1024_with_70_billion_parameters_needs_less_than_a_gibibyte() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    parameters, optimizer, resident_kib = map(int, done.stdout.split())
    assert parameters == 2 * 70_553_706_496 // 1024
    assert optimizer > 12 * 70_553_706_496 // 1024
    assert resident_kib < 2**20
    assert Precision.named("bf16").master == "fp32"
