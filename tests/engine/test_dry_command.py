"""The command `shardlab dry`."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from torch import Tensor, nn

from shardlab.engine import cli
from shardlab.plan import MeshShape, Plan, Precision, gpt, preset, state_bytes


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["dry", *words])
    return int(end.value.code or 0)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self.out(self.table(ids)).flatten(0, 1), targets.flatten())


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_models")
    module.own = Own  # type: ignore[attr-defined]
    module.described = lambda: gpt(layers=2, hidden=8, heads=2, vocab=11, positions=4)  # type: ignore[attr-defined]
    module.number = lambda: 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", module)


def test_json_has_the_shape_of_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "mlp", "--gpus", "3", "--rank", "2", "--zero", "3", "--precision", "fp32", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema", "verdict", "inputs", "result", "assumptions"]
    assert found["schema"] == "shardlab.dry/1"
    assert found["result"]["state"] == state_bytes(Plan(preset("mlp"), MeshShape({"dp": 3}), zero=3), 2)
    assert Plan.from_dict(found["inputs"]["plan"]).precision == Precision()
    assert found["inputs"]["rank"] == found["result"]["rank"] == 2


def test_text_begins_with_the_verdict(capsys: pytest.CaptureFixture[str], models: None) -> None:
    assert run("--model", "own_models:described", "--gpus", "64", "--recompute", "full") == 0
    out = capsys.readouterr().out
    assert out.startswith("rank 0 of 64 ran one step of own_models:described\n")
    for word in ("parameters", "padding", "pooled", "during a step", "all_reduce", "over dp", "assumed: "):
        assert word in out


def test_a_module_of_ones_own(capsys: pytest.CaptureFixture[str], models: None) -> None:
    assert run("--model", "own_models:own", "--gpus", "2", "--seq", "6", "--precision", "fp32", "--json") == 0
    assert json.loads(capsys.readouterr().out)["result"]["state"]["parameters"] == 4 * 90


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt22"], "nearest preset: 'gpt2'"),
        (["--model", "gpt2", "--zero", "4"], "zero is 4"),
        (["--model", "gpt2", "--rank", "2"], "rank is 2, valid are 0..1"),
        (["--model", "gpt2", "--seq", "5000"], "has 1024 learned positions"),
        (["--model", "7.5e9"], "of which nothing can be built"),
        (["--model", "own_models:missing"], "want package.module:function"),
        (["--model", "own_models:number"], "returned int"),
        (["--model", "own_models:own", "--recompute", "full"], "has to recompute by itself"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], models: None, words: list[str], said: str) -> None:
    assert run(*words, "--gpus", "2") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
