"""The closed configuration: honoured keys, and errors with path and nearest key."""

import json
from pathlib import Path

import pytest

from shardlab.plan import Precision, parse_config, read_config_file

ZERO3 = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 500, "warmup_num_steps": 20}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "data_types": {"grad_accum_dtype": "fp32"},
    "seed": 7,
}


def test_values_and_defaults() -> None:
    config = parse_config(ZERO3)
    assert config.optimizer.params.betas == (0.9, 0.95) and config.optimizer.name == "adamw"
    assert config.scheduler is not None and config.scheduler.params.warmup_type == "log"
    assert config.precision == Precision("bf16", "fp32", "fp32", "fp32")
    assert config.batch(4).micro == 4 and config.zero_optimization.stage == 3
    empty = parse_config({})
    assert empty.precision == Precision() and empty.zero_optimization.stage == 0 and empty.scheduler is None


def test_bf16_alone_keeps_gradients_in_bf16() -> None:
    assert parse_config({"bf16": {"enabled": True}}).precision == Precision.named("bf16")


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        ({"gradient_cliping": 1.0}, ["gradient_cliping: unknown key", "'gradient_clipping'"]),
        ({"zero_optimization": {"stag": 3}}, ["zero_optimization.stag: unknown key", "'zero_optimization.stage'"]),
        (
            {"optimizer": {"params": {"learning": 1}}},
            ["optimizer.params.learning: unknown key", "keys of optimizer.params"],
        ),
        ({"zero_optimization": {"stage": 4}}, ["zero_optimization.stage", "0, 1, 2 or 3", "4"]),
        ({"optimizer": {"type": "AdamX"}}, ["optimizer.type", "'AdamX'"]),
        ({"bf16": {"enabled": "yes"}}, ["bf16.enabled", "valid boolean"]),
        ({"seed": -1}, ["seed"]),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, ["grad_accum_dtype is 'bf16' but bf16.enabled is false"]),
        ({"gradient_cliping": 1, "sed": 1}, ["2 problem(s)", "gradient_cliping", "sed"]),
    ],
)
def test_every_problem_is_named(data: dict[str, object], messages: list[str]) -> None:
    with pytest.raises(ValueError, match="config: ") as caught:
        parse_config(data)
    assert all(message in str(caught.value) for message in messages)


def test_momentum_makes_another_optimizer() -> None:
    assert parse_config({"optimizer": {"type": "SGD"}}).optimizer.name == "sgd"
    assert parse_config({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}).optimizer.name == "sgd-momentum"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(ZERO3))
    assert read_config_file(path) == parse_config(ZERO3)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"ds\.json: not JSON"):
        read_config_file(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="want a JSON object, got list"):
        read_config_file(path)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"steps_per_print": 10}, "steps_per_print"),
        ({"zero_optimization": {"stage": 3, "overlap_comm": True}}, "zero_optimization.overlap_comm"),
        ({"fp16": {"enabled": True}}, "fp16: .*use bf16"),
    ],
)
def test_keys_of_deepspeed_are_known_and_refused_as_such(data: dict, path: str) -> None:
    with pytest.raises(ValueError, match=rf"{path}") as refused:
        parse_config(data)
    assert "a key of DeepSpeed that is not read yet" in str(refused.value)
    assert "did you mean" not in str(refused.value)
