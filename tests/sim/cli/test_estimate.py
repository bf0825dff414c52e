"""`zsim estimate` as a user types it."""

import json
from pathlib import Path

import pytest

from shardlab.sim import estimate
from shardlab.sim.cli import app, run

BASE = ["--model", "gpt2", "--gpus", "8", "--device", "a100-80g"]


def zsim(*words: str) -> int:
    return run(lambda: app(["estimate", *BASE, *words], standalone_mode=False))


def test_json_is_the_same_object_as_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert zsim("--zero", "3", "--micro-batch", "2", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == estimate("gpt2", gpus=8, device="a100-80g", zero=3, micro_batch=2).to_dict()
    assert err == ""


def test_no_is_exit_code_1_with_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert zsim("--micro-batch", "512") == 1
    out = capsys.readouterr().out
    assert out.startswith("does not fit") and "the cheapest changes that fit" in out and "--micro-batch" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--tp", "2"), ("--pp", "2"), ("--cp", "2"), ("--ep", "2"), ("--virtual-stages", "2"), ("--schedule", "1f1b"),
        ("--sequence-parallel",), ("--offload-optimizer", "host"), ("--offload-params", "disk"), ("--precision", "fp8"),
        ("--recompute", "selective"),
    ],
)  # fmt: skip
def test_parts_that_are_not_built_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert zsim(*words) == 2
    out, err = capsys.readouterr()
    assert "not built yet" in err and out == ""


def test_neutral_values_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tp", "1", "--pp", "1", "--cp", "1", "--ep", "1", "--virtual-stages", "1", "--offload-optimizer", "none"]
    assert zsim(*words, "--offload-params", "none", "--optimizer", "sgd", "--nodes", "2", "--seq", "64") == 0
    assert capsys.readouterr().out.startswith("fits")


def test_every_value_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nodes", "4", "--zero", "2", "--micro-batch", "2", "--global-batch", "64", "--seq", "128", "--recompute",
             "full", "--precision", "fp16", "--optimizer", "sgd-momentum", "--json"]  # fmt: skip
    assert zsim(*words) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    plan = inputs["plan"]
    assert (inputs["nodes"], inputs["global_batch"], plan["mesh"]) == (4, 64, {"dp": 8})
    got = [plan[key] for key in ("zero", "micro_batch", "accumulation", "seq", "recompute", "optimizer")]
    assert got == [2, 2, 4, 128, "full", "sgd-momentum"] and plan["precision"]["compute"] == "fp16"


def test_config_errors_name_path_and_nearest_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "gradient_cliping": 1.0}')
    assert zsim("--config", str(path)) == 2
    err = capsys.readouterr().err
    assert "gradient_cliping: unknown key" in err and "'gradient_clipping'" in err and str(path) in err


def test_offload_values_get_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert zsim("--offload-params", "dsk") == 2
    assert "nearest: 'disk'" in capsys.readouterr().err
