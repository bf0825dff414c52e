"""Hugging Face configurations of the reference families, and refusals by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardlab.plan import from_hf, load_model, preset

GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024,
        "n_inner": None}  # fmt: skip
QWEN = {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
        "tie_word_embeddings": True}  # fmt: skip
LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "rope_parameters": {"rope_theta": 500000.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name"), [(GPT2, "gpt2"), (QWEN, "qwen2.5-0.5b"), (LLAMA, "llama3-8b")], ids=["gpt2", "qwen2", "llama"]
)
def test_same_parameters_as_the_preset(config: dict[str, Any], name: str) -> None:
    assert from_hf(config).params == preset(name).params


def test_counts_equal_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    small = transformers.Qwen2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                     intermediate_size=48, vocab_size=99, tie_word_embeddings=True)  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(small)
    assert from_hf(small.to_dict()).numel == sum(p.numel() for p in model.parameters())
    assert from_hf(small.to_dict()).config["rope_theta"] == 10000.0


def test_refusals_name_the_type_or_the_key() -> None:
    with pytest.raises(ValueError, match=r"model_type 'mixtral' is not read yet; known: gpt2 llama"):
        from_hf({"model_type": "mixtral"})
    with pytest.raises(ValueError, match=r"nearest: 'qwen2'"):
        from_hf({"model_type": "qwen3"})
    with pytest.raises(ValueError, match=r"has no key 'n_head'"):
        from_hf({k: v for k, v in GPT2.items() if k != "n_head"})
    with pytest.raises(ValueError, match="mlp_bias"):
        from_hf({**LLAMA, "mlp_bias": True})
    with pytest.raises(ValueError, match="attention_bias"):
        from_hf({**LLAMA, "attention_bias": True})


def test_files(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(folder / "config.json")).name == "my-llama"
    assert load_model(str(folder) + "/").numel == preset("llama3-8b").numel
    own = tmp_path / "own.json"
    own.write_text(json.dumps(preset("gpt2").to_dict()))
    assert load_model(str(own)) == preset("gpt2")
    own.write_text("{")
    with pytest.raises(ValueError, match=r"own\.json: not JSON"):
        load_model(str(own))
    own.write_text("[]")
    with pytest.raises(ValueError, match="want a JSON object, got list"):
        load_model(str(own))
