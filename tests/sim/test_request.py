"""Requests made definite, or refused with what would be right."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardlab.plan import Precision
from shardlab.sim import Request, RequestError
from shardlab.sim.request import Resolved, refuse_unbuilt, resolve


def ask(**changes: Any) -> Resolved:
    return resolve(Request(**{"model": "gpt2", "gpus": 8, "device": "a100-80g", **changes}))


def test_defaults_are_filled_in_and_said() -> None:
    found = ask()
    plan = found.plan
    assert (plan.dp, plan.zero, plan.precision, plan.optimizer) == (8, 0, Precision.named("bf16"), "adamw")
    assert (plan.micro_batch, plan.accumulation, plan.seq, found.nodes) == (1, 1, 1024, 1)
    assert len(found.chosen) == 3 and any("--seq not given" in sentence for sentence in found.chosen)
    assert ask(micro_batch=2, seq=64, precision="fp32").chosen == ()


def test_batches() -> None:
    assert (ask(micro_batch=2, global_batch=64).plan.accumulation, ask(global_batch=64).plan.accumulation) == (4, 8)


def test_nodes() -> None:
    assert ask(gpus=64).nodes == 8 and ask(gpus=64, nodes=16).nodes == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gpt3"}, "nearest preset: 'gpt"),
        ({"model": "/nowhere/config.json"}, "/nowhere/config.json: No such file"),
        ({"device": "a100"}, "nearest: 'a100"),
        ({"gpus": 0}, "--gpus 0"),
        ({"nodes": 3}, "--nodes 3: does not divide 8 ranks evenly; nearest: 2"),
        ({"zero": 4}, "zero is 4; want 0, 1, 2 or 3"),
        ({"precision": "bf15"}, "--precision 'bf15'.*nearest: 'bf16'"),
        ({"precision": "fp8"}, "'fp8' is not built yet"),
        ({"recompute": "selective"}, "'selective', which is not built yet"),
        ({"recompute": "ful"}, "nearest: 'full'"),
        ({"optimizer": "adamx"}, "nearest: 'adam"),
        ({"micro_batch": 3, "global_batch": 32}, "--global-batch 32 is not divisible by --micro-batch 3 x 8 ranks"),
        ({"seq": 2048}, "seq is 2048, but model 'gpt2' has 1024 learned positions"),
        ({"micro_batch": 0}, "--micro-batch is 0"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ask(**changes)


def test_config(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({
        "train_batch_size": 32, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3}, "data_types": {"grad_accum_dtype": "fp32"}, "optimizer": {"type": "SGD"},
    }))  # fmt: skip
    plan = ask(config=path).plan
    assert (plan.micro_batch, plan.accumulation, plan.zero, plan.optimizer) == (2, 2, 3, "sgd")
    assert plan.precision == Precision("bf16", "fp32", "fp32", "fp32")
    assert ask(config=path, zero=3, precision="bf16").plan == plan
    for changes, message in (
        ({"zero": 2}, "--zero 2 contradicts --config, which says 3|contradicts the configuration, which says 3"),
        ({"precision": "fp32"}, "--precision fp32 contradicts"),
        ({"micro_batch": 1}, "has its own batch keys"),
    ):
        with pytest.raises(RequestError, match=message):
            ask(config=path, **changes)
    path.write_text('{"train_batch_size": 30}')
    with pytest.raises(RequestError, match="30 is not divisible"):
        ask(config=path)
    path.write_text('{"zero_optimisation": {}}')
    with pytest.raises(RequestError, match="did you mean 'zero_optimization'"):
        ask(config=path)


def test_flags_of_parts_that_are_not_built() -> None:
    refuse_unbuilt(tp=(1, 1), schedule=(None, None))
    with pytest.raises(RequestError, match="--tp 2: not built yet; only 1"):
        refuse_unbuilt(tp=(2, 1))
    with pytest.raises(RequestError, match="--virtual-stages 2"):
        refuse_unbuilt(virtual_stages=(2, 1))
    with pytest.raises(RequestError, match="--sequence-parallel True: not built yet; leave it out"):
        refuse_unbuilt(sequence_parallel=(True, False))
