"""Model presets by name, each with the publication its sizes come from.

The GPT sizes from 1.7b to 1t are Table 1 of Narayanan et al. 2021 (Megatron-LM on GPU clusters, arXiv 2104.04473):
vocabulary 51,200 and 2,048 positions. Table 2 of the same paper and the ZeRO paper use the 7.5b and 175b shapes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardlab.plan.families import from_dict
from shardlab.plan.model import ModelSpec, count

_MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473, Table 1"
_GPT2 = "Radford et al. 2019; huggingface.co/openai-community/gpt2 config.json"
_GPT3 = "Brown et al. 2020, arXiv 2005.14165, Table 2.1"
_LLAMA2 = "Touvron et al. 2023, arXiv 2307.09288; huggingface.co/meta-llama config.json"
_LLAMA3 = "Grattafiori et al. 2024, arXiv 2407.21783, Table 3"
_QWEN = "Qwen team 2024, arXiv 2412.15115; huggingface.co/Qwen config.json"


def _megatron(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {"family": "gpt", "source": _MEGATRON, "layers": layers, "hidden": hidden, "heads": heads, "vocab": 51200,
            "positions": 2048}  # fmt: skip


def _gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    return {"family": "gpt", "source": _GPT2, "layers": layers, "hidden": hidden, "heads": heads, "vocab": 50257,
            "positions": 1024}  # fmt: skip


def _llama(source: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int,
           **more: Any) -> dict[str, Any]:  # fmt: skip
    return {"family": "llama", "source": source, "layers": layers, "hidden": hidden, "heads": heads,
            "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab, **more}  # fmt: skip


def _qwen(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, tied: bool) -> dict[str, Any]:
    return _llama(_QWEN, layers, hidden, heads, kv_heads, ffn, vocab, tied=tied, qkv_bias=True, positions=32768,
                  rope_theta=1e6, norm_eps=1e-6)  # fmt: skip


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gpt2": _gpt2(12, 768, 12),
        "gpt2-medium": _gpt2(24, 1024, 16),
        "gpt2-large": _gpt2(36, 1280, 20),
        "gpt2-xl": _gpt2(48, 1600, 25),
        "gpt-1.7b": _megatron(24, 2304, 24),
        "gpt-3.6b": _megatron(30, 3072, 32),
        "gpt-7.5b": _megatron(36, 4096, 32),
        "gpt-18b": _megatron(40, 6144, 48),
        "gpt-39b": _megatron(48, 8192, 64),
        "gpt-76b": _megatron(60, 10240, 80),
        "gpt-145b": _megatron(80, 12288, 96),
        "gpt-310b": _megatron(96, 16384, 128),
        "gpt-530b": _megatron(105, 20480, 128),
        "gpt-1t": _megatron(128, 25600, 160),
        "gpt3-175b": {"family": "gpt", "source": _GPT3, "layers": 96, "hidden": 12288, "heads": 96, "vocab": 50257,
                      "positions": 2048},
        "llama2-7b": _llama(_LLAMA2, 32, 4096, 32, 32, 11008, 32000),
        "llama2-13b": _llama(_LLAMA2, 40, 5120, 40, 40, 13824, 32000),
        "llama2-70b": _llama(_LLAMA2, 80, 8192, 64, 8, 28672, 32000),
        "llama3-8b": _llama(_LLAMA3, 32, 4096, 32, 8, 14336, 128256, positions=8192, rope_theta=5e5),
        "llama3-70b": _llama(_LLAMA3, 80, 8192, 64, 8, 28672, 128256, positions=8192, rope_theta=5e5),
        "llama3-405b": _llama(_LLAMA3, 126, 16384, 128, 8, 53248, 128256, positions=8192, rope_theta=5e5),
        "mistral-7b": _llama("Jiang et al. 2023, arXiv 2310.06825, Table 1", 32, 4096, 32, 8, 14336, 32000,
                             positions=8192),
        "qwen2.5-0.5b": _qwen(24, 896, 14, 2, 4864, 151936, True),
        "qwen2.5-1.5b": _qwen(28, 1536, 12, 2, 8960, 151936, True),
        "qwen2.5-3b": _qwen(36, 2048, 16, 2, 11008, 151936, True),
        "qwen2.5-7b": _qwen(28, 3584, 28, 4, 18944, 152064, False),
        "qwen2.5-14b": _qwen(48, 5120, 40, 8, 13824, 152064, False),
        "qwen2.5-32b": _qwen(64, 5120, 40, 8, 27648, 152064, False),
        "qwen2.5-72b": _qwen(80, 8192, 64, 8, 29568, 152064, False),
        "smollm2-135m": _llama("huggingface.co/HuggingFaceTB/SmolLM2-135M config.json", 30, 576, 9, 3, 1536, 49152,
                               tied=True, positions=8192, rope_theta=1e5),
        "mlp": {"family": "mlp", "source": "small example", "widths": [784, 512, 512, 10]},
    }
)  # fmt: skip
"""Constructor arguments by preset name; `family` and `source` beside them."""


def preset(name: str) -> ModelSpec:
    """Make the model of a preset name.

    Raises:
        ValueError: If there is no such preset; the message holds the nearest name.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name.lower(), PRESETS, n=1, cutoff=0.3)
        hint = f"nearest preset: {near[0]!r}" if near else f"presets: {' '.join(PRESETS)}"
        raise ValueError(f"model {name!r} is no preset, no file and no number; {hint}")
    sizes = {key: value for key, value in PRESETS[name].items() if key not in ("family", "source")}
    return from_dict({"name": name, "family": PRESETS[name]["family"], "config": sizes})


def load_model(text: str) -> ModelSpec:
    """Make a model from what a user types: a preset name, a path of a Hugging Face `config.json`, or a count.

    Args:
        text: `llama3-8b`, `path/config.json`, or `7.5e9`.

    Raises:
        ValueError: If it is none of these; the message says what is near.
        OSError: If the file cannot be read.
    """
    if re.fullmatch(r"[0-9][0-9_]*(\.[0-9]+)?([eE]\+?[0-9]+)?", text):
        return count(float(text) if not text.isdigit() else int(text), name=text)
    if "/" in text and not text.endswith(".json") and not Path(text).exists():
        near = difflib.get_close_matches(text.split("/")[-1].lower(), PRESETS, n=1, cutoff=0.3)
        raise ValueError(
            f"model {text!r}: no such file, and nothing is fetched from a hub; give the path of its config.json, "
            "a count such as 7.5e9, or a preset" + (f", such as {near[0]!r}" if near else "")
        )
    if text.endswith(".json") or "/" in text or Path(text).is_file():
        from shardlab.plan.huggingface import read_config

        return read_config(Path(text))
    return preset(text)
