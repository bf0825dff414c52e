"""Layers, units and ties of a model, and its JSON."""

import json

import pytest

from shardlab.plan import ModelSpec, UnitSpec, count, from_dict, gpt, llama, mlp
from shardlab.plan.layout import ParamSpec

SMALL = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 11}


def test_gpt_parameters_in_module_order() -> None:
    names = [p.name for p in gpt(**SMALL, positions=4).params]
    assert names[:3] == ["embed.tok.weight", "embed.pos.weight", "blocks.0.ln1.weight"]
    assert names[-2:] == ["head.norm.weight", "head.norm.bias"]
    assert gpt(**SMALL, positions=4, tied=False).params[-1] == ParamSpec("head.out.weight", (11, 8), "fp32")


def test_tied_parameter_is_a_unit_of_its_own_and_comes_first() -> None:
    model = gpt(**SMALL, positions=4)
    assert [u.name for u in model.units] == ["embed.tok.weight", "embed.pos", "blocks.0", "blocks.1", "head.norm"]
    assert model.unit("embed.tok.weight").layers == ("embed.tok", "head.out")
    assert model.units_of["head.out"] == ("embed.tok.weight",) and model.units_of["loss"] == ()
    assert model.numel == sum(p.numel for p in model.params) == sum(p.numel for u in model.units for p in u.params)


def test_untied_units() -> None:
    model = llama(**SMALL, ffn=16)
    assert [u.name for u in model.units] == ["embed.tok", "blocks.0", "blocks.1", "head.norm", "head.out"]


def test_mlp() -> None:
    model = mlp(widths=[3, 4, 5])
    assert [u.name for u in model.units] == ["layers.0", "layers.1"]
    assert model.numel == 3 * 4 + 4 + 4 * 5 + 5


def test_flat_groups_by_dtype_and_training() -> None:
    params = (ParamSpec("a", (2,), "fp32"), ParamSpec("b", (2,), "fp32", False), ParamSpec("c", (2,), "fp32"))
    groups = UnitSpec("u", params, ("l",)).groups("bf16")
    assert [[p.name for p in g] for g in groups] == [["a", "c"], ["b"]]
    assert groups[0][0].dtype == "bf16"


@pytest.mark.parametrize("model", [gpt(**SMALL, positions=4), llama(**SMALL, ffn=16), mlp(widths=[3, 4]), count(7.5e9)])
def test_json_both_ways(model: ModelSpec) -> None:
    again = from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model and hash(again) == hash(model)


def test_count() -> None:
    model = count(7.5e9)
    assert model.numel == 7_500_000_000 and model.states_only and model.name == "7.5e+09"
    for wrong in (0, -1, 1.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="parameter count"):
            count(wrong)
