"""Preset sizes equal what their publications and model cards say."""

from pathlib import Path

import pytest

from shardlab.plan import PRESETS, load_model, preset

EXACT = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", EXACT)
def test_counts_of_model_cards(name: str) -> None:
    assert preset(name).numel == EXACT[name]


@pytest.mark.parametrize("name", [n for n in PRESETS if n.startswith("gpt-") or n == "gpt3-175b"])
def test_megatron_table_is_within_four_percent_of_its_label(name: str) -> None:
    label = float(name.split("-")[1].rstrip("bt")) * (1e12 if name.endswith("1t") else 1e9)
    assert preset(name).numel == pytest.approx(label, rel=0.04)
    assert preset("gpt-7.5b").numel == pytest.approx(7.5e9, rel=0.01)


def test_every_preset_has_a_source_and_builds() -> None:
    for name, made in PRESETS.items():
        assert made["source"] and preset(name).name == name


@pytest.mark.parametrize(("text", "numel"), [("7.5e9", 7_500_000_000), ("1000", 1000), ("1_000", 1000)])
def test_bare_count(text: str, numel: int) -> None:
    assert load_model(text).numel == numel


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'llama3-8'.*nearest preset: 'llama3-8b'"):
        load_model("llama3-8")
    with pytest.raises(OSError, match="nowhere"):
        load_model(str(tmp_path / "nowhere.json"))
