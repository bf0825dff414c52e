"""Read the `config.json` of a GPT-2- or Llama-like decoder from Hugging Face.

Only families whose blocks have exactly the reference shapes are read. Another `model_type` is refused by name: a count
that is silently off by a gate matrix or an expert is worse than none.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab.plan.families import gpt, llama
from shardlab.plan.jsonfile import read_object
from shardlab.plan.model import ModelSpec

_LLAMA_LIKE = {"llama": False, "mistral": False, "qwen2": True}
"""Model types read as Llama-like, and whether q, k and v have biases."""


def from_hf(config: Mapping[str, Any], name: str = "") -> ModelSpec:
    """Make a model from a Hugging Face configuration.

    Args:
        config: The parsed `config.json`.
        name: Name to show; the model type if empty.

    Raises:
        ValueError: If the model type is unknown, a key is missing, or a feature is not modelled.
    """
    kind = config.get("model_type")
    known = ["gpt2", *_LLAMA_LIKE]
    if kind not in known:
        near = difflib.get_close_matches(str(kind), known, n=1)
        hint = f"; nearest: {near[0]!r}" if near else ""
        raise ValueError(f"model_type {kind!r} is not read yet; known: {' '.join(known)}{hint}")
    name = name or str(kind)
    try:
        return _gpt2(config, name) if kind == "gpt2" else _llama(config, name, _LLAMA_LIKE[str(kind)])
    except KeyError as error:
        raise ValueError(f"{name}: config of model_type {kind!r} has no key {error}") from None


def _gpt2(config: Mapping[str, Any], name: str) -> ModelSpec:
    return gpt(
        layers=config["n_layer"],
        hidden=config["n_embd"],
        heads=config["n_head"],
        vocab=config["vocab_size"],
        positions=config["n_positions"],
        ffn=config.get("n_inner"),
        tied=config.get("tie_word_embeddings", True),
        name=name,
    )


def _llama(config: Mapping[str, Any], name: str, qkv_bias: bool) -> ModelSpec:
    if config.get("mlp_bias"):
        raise ValueError(f"{name}: mlp_bias is true, which is not modelled; want false")
    if config.get("attention_bias") and not qkv_bias:
        raise ValueError(f"{name}: attention_bias is true, which also adds a bias to o and is not modelled; want false")
    return llama(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads"),
        head_dim=config.get("head_dim"),
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=config.get("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        positions=config.get("max_position_embeddings", 4096),
        rope_theta=_rope_theta(config),
        norm_eps=float(config.get("rms_norm_eps", 1e-5)),
        name=name,
    )


def _rope_theta(config: Mapping[str, Any]) -> float:
    """Return the base of the rotary frequencies, which newer configurations keep one level down."""
    below = config.get("rope_parameters")
    value = config.get("rope_theta", below.get("rope_theta") if isinstance(below, Mapping) else None)
    return 10000.0 if value is None else float(value)


def read_config(path: Path) -> ModelSpec:
    """Make a model from a `config.json`, or from a JSON file that `ModelSpec.to_dict` wrote.

    Args:
        path: The file, or the folder that holds `config.json`.

    Raises:
        ValueError: If it is not such a file.
        OSError: If it cannot be read.
    """
    path = path / "config.json" if path.is_dir() else path
    data = read_object(path)
    if "family" in data and "config" in data:
        from shardlab.plan.families import from_dict

        return from_dict(data)
    try:
        return from_hf(data, name=path.parent.name if path.name == "config.json" and path.parent.name else path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
