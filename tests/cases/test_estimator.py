"""Cases of the estimator: numbers that other calculators got wrong in public."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shardlab.plan import ModelSpec, Precision, count, gpt, llama, solve_batch
from shardlab.plan.units import format_gb, format_gib
from shardlab.sim import Estimate, estimate
from shardlab.sim.render.estimate import render


def states(model: str | ModelSpec, gpus: int, zero: int, **more: Any) -> Estimate:
    return estimate(model, gpus=gpus, device="a100-80g", zero=zero, **more)


def state_bytes(found: Estimate) -> int:
    return sum(found.memory.by_category[name] for name in ("parameters", "gradients", "optimizer"))


def text_of(found: Estimate) -> str:
    out = io.StringIO()
    render(found.to_dict(), Console(file=out, width=200))
    return out.getvalue()


def test_EST_01_gb_or_gib_in_the_memory_estimate(tmp_path: Path) -> None:
    model = count(6_805_000_000, largest_layer=131_000_000)
    mixed = Precision("bf16", "fp32", "fp32", "fp32")  # 2 + 4 + 12 = 18 bytes per parameter
    found = states(model, 4, 3, precision=mixed)
    needed = found.to_dict()["result"]["memory"]["per_rank_bytes"]
    assert state_bytes(found) == 18 * 6_805_000_000 // 4
    # two gathered layers of 2 bytes, this one and the one fetched ahead, are the 4 bytes of the largest layer
    assert state_bytes(found) + needed["gathered"] == 31_146_500_000
    assert (format_gb(31_146_500_000, 4), format_gib(31_146_500_000, 4)) == ("31.15 GB", "29.01 GiB")
    row = next(line for line in text_of(found).splitlines() if line.startswith("allocated"))
    gib, gb = row.split()[2:4]
    assert float(gib) == pytest.approx(needed["allocated"] / 2**30, rel=1e-3)
    assert float(gb) == pytest.approx(needed["allocated"] / 10**9, rel=1e-3)


@pytest.mark.parametrize(("zero", "gb"), [(0, 120.0), (1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_EST_03_model_states_at_stages_0_to_3(zero: int, gb: float) -> None:
    found = states("7.5e9", 64, zero, precision="fp16")
    assert state_bytes(found) == gb * 10**9
    result = found.to_dict()["result"]["memory"]
    listed = {row["what"]: (row["bytes"], row["divided_by"]) for row in result["bytes_per_parameter"]}
    assert listed["parameters"] == (2, 64 if zero == 3 else 1)
    assert listed["gradients"] == (2, 64 if zero >= 2 else 1)
    assert [listed[name] for name in ("master weights", "moment 1", "moment 2")] == [(4, 64 if zero else 1)] * 3
    # extra copies, buffers and padding are separate
    assert result["per_rank_bytes"]["buffers"] == (234_375_000 if zero == 1 else 0)
    assert 0 <= result["per_rank_bytes"]["padding"] < 20_000
    text = text_of(found)
    assert "bytes per parameter" in text and "16" in text and ("/ 64 ranks" in text) == (zero > 0)


@pytest.mark.parametrize(("zero", "gb"), [(0, 120.0), (1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_EST_03_the_preset_is_within_one_percent(zero: int, gb: float) -> None:
    assert state_bytes(states("gpt-7.5b", 64, zero)) == pytest.approx(gb * 10**9, rel=0.01)


def test_EST_05_gated_feed_forward_layers_have_three_matrices() -> None:
    model = llama(layers=80, hidden=8192, heads=64, ffn=24576, vocab=152064, qkv_bias=True)
    assert states(model, 64, 3).to_dict()["result"]["model"]["parameters"] == 72_287_920_128


@pytest.mark.parametrize("tied", [True, False])
def test_EST_11_an_embedding_look_up_is_no_matrix_product(tied: bool) -> None:
    model = gpt(layers=12, hidden=768, heads=12, vocab=50257, positions=1024, tied=tied)
    facts = states(model, 1, 0, seq=1024).to_dict()["result"]["model"]
    assert facts["training_flops_per_token"] == 741_192_192 + 113_246_208 == 854_438_400


@pytest.mark.parametrize(
    ("precision", "per_parameter", "gb"),
    [
        (Precision.named("fp16"), 16, 107.2),
        (Precision.named("fp32"), 16, 107.2),
        (Precision("fp16", "fp32", "fp32", "fp32"), 18, 120.6),
    ],
    ids=["fp16", "fp32", "fp16 with fp32 gradients"],
)
def test_EST_13_adam_state_of_mixed_precision_training(precision: Precision, per_parameter: int, gb: float) -> None:
    found = states("6.7e9", 1, 0, precision=precision)
    assert state_bytes(found) == gb * 10**9
    assert f"  {per_parameter} " in next(line for line in text_of(found).splitlines() if "in all" in line)


@pytest.mark.parametrize(("tied", "numel"), [(True, 32_768_000), (False, 65_536_000)])
def test_EST_15_vocabulary_weights_once_per_model(tied: bool, numel: int) -> None:
    model = llama(layers=16, hidden=1024, heads=16, ffn=4096, vocab=32000, tied=tied)
    facts = states(model, 1, 0).to_dict()["result"]["model"]
    assert facts["vocabulary_parameters"] == numel
    assert facts["parameters_by_part"]["embedding"] == 32_768_000
    assert f"vocabulary {numel:,}" in text_of(states(model, 1, 0))


def test_EST_json_is_in_bytes_and_serialises() -> None:
    found = json.loads(json.dumps(states("7.5e9", 64, 1).to_dict()))
    assert found["result"]["memory"]["per_rank_bytes"]["parameters"] == 15_000_000_000


@pytest.mark.parametrize(
    ("settings", "solved"),
    [
        ((32, None, None), (32, 8, 1)),
        ((None, 4, None), (16, 4, 1)),
        ((None, 4, 2), (32, 4, 2)),
        ((32, 4, None), (32, 4, 2)),
        ((32, None, 2), (32, 4, 2)),
    ],
)
def test_CFG_02_solving_the_batch_size_triple(
    settings: tuple[int | None, int | None, int | None], solved: tuple[int, int, int]
) -> None:
    found = solve_batch(*settings, dp=4)
    assert (found.train, found.micro, found.accumulation) == solved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((32, 4, 3), r"32 is not 4 x 3 x 4 = 48"),
        ((30, 4, None), r"30 is not divisible by 4 x 4"),
        ((None, None, 2), r"gradient_accumulation_steps alone"),
        ((None, None, None), r"gradient_accumulation_steps alone"),
    ],
)
def test_CFG_02_contradictions_name_keys_and_numbers(
    settings: tuple[int | None, int | None, int | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        solve_batch(*settings, dp=4)
    assert "train_batch_size" in str(caught.value) and "train_micro_batch_size_per_gpu" in str(caught.value)
