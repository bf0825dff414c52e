"""The reference models: a GPT-2-like decoder, a Llama-like decoder, and a multi-layer perceptron.

    GPT    embed.tok (+ embed.pos) -> blocks: ln1, attn.qkv, attn.proj, ln2, mlp.up, mlp.down -> head.norm -> head.out
    Llama  embed.tok -> blocks: norm1, attn.{q,k,v,o}, norm2, mlp.{gate,up,down} -> head.norm -> head.out
    MLP    layers.0 -> relu -> layers.1 -> ... -> mean squared error

Linear weights have the shape (out, in), as in `torch.nn.Linear`. All parameters are described in fp32; the precision of
a plan says in which dtype they are computed and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardlab.plan.layout import ParamSpec
from shardlab.plan.model import LayerSpec, ModelSpec, count


def _params(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[ParamSpec, ...]:
    return tuple(ParamSpec(f"{prefix}.{name}", shape, "fp32") for name, shape in shapes.items())


def _positive(family: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{family}: {name} is {size!r}; want a whole number of at least 1")


def _divides(family: str, whole_name: str, whole: int, part_name: str, part: int) -> None:
    if whole % part:
        raise ValueError(f"{family}: {part_name} {part} does not divide {whole_name} {whole}")


def _head(config: Mapping[str, Any], norm: Mapping[str, tuple[int, ...]], norm_kind: str) -> tuple[LayerSpec, ...]:
    hidden, vocab = config["hidden"], config["vocab"]
    dims = {"hidden": hidden, "vocab": vocab}
    tied = ("embed.tok.weight",) if config["tied"] else ()
    out = () if config["tied"] else _params("head.out", {"weight": (vocab, hidden)})
    return (
        LayerSpec("head.norm", norm_kind, _params("head.norm", norm), (), dims),
        LayerSpec("head.out", "linear_head", out, tied, dims),
        LayerSpec("loss", "cross_entropy", (), (), dims),
    )


def gpt(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    positions: int,
    ffn: int | None = None,
    tied: bool = True,
    bias: bool = True,
    name: str = "gpt",
) -> ModelSpec:
    """Describe a GPT-2-like pre-norm decoder with learned positions.

    Args:
        layers: Number of blocks.
        hidden: Width.
        heads: Attention heads; divides hidden.
        vocab: Vocabulary rows.
        positions: Longest sequence.
        ffn: Width of the feed-forward layer; 4 x hidden if not given.
        tied: Whether the head uses the embedding's weight.
        bias: Whether linear layers and norms have biases.
        name: Name to show.

    Raises:
        ValueError: If a size is not positive or heads does not divide hidden.
    """
    ffn = 4 * hidden if ffn is None else ffn
    _positive("gpt", layers=layers, hidden=hidden, heads=heads, vocab=vocab, positions=positions, ffn=ffn)
    _divides("gpt", "hidden", hidden, "heads", heads)
    config = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab, "positions": positions, "ffn": ffn,
              "tied": tied, "bias": bias}  # fmt: skip
    dims = {"hidden": hidden, "heads": heads, "head_dim": hidden // heads, "ffn": ffn}
    matrices = {"ln1": (hidden,), "attn.qkv": (3 * hidden, hidden), "attn.proj": (hidden, hidden), "ln2": (hidden,),
                "mlp.up": (ffn, hidden), "mlp.down": (hidden, ffn)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {}
    for key, shape in matrices.items():
        shapes[f"{key}.weight"] = shape
        if bias:
            shapes[f"{key}.bias"] = shape[:1]
    norm: dict[str, tuple[int, ...]] = {"weight": (hidden,), **({"bias": (hidden,)} if bias else {})}
    wide = {"hidden": hidden, "vocab": vocab}
    found = (
        LayerSpec("embed.tok", "embedding", _params("embed.tok", {"weight": (vocab, hidden)}), (), wide),
        LayerSpec("embed.pos", "positions", _params("embed.pos", {"weight": (positions, hidden)}), (), wide),
        *(LayerSpec(f"blocks.{at}", "gpt_block", _params(f"blocks.{at}", shapes), (), dims) for at in range(layers)),
        *_head(config, norm, "layer_norm"),
    )
    return ModelSpec(name, "gpt", config, found)


def llama(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    tied: bool = False,
    qkv_bias: bool = False,
    positions: int = 4096,
    rope_theta: float = 10000.0,
    norm_eps: float = 1e-5,
    name: str = "llama",
) -> ModelSpec:
    """Describe a Llama-like decoder: RMS norms, rotary positions, grouped heads, a gated feed-forward layer.

    Args:
        layers: Number of blocks.
        hidden: Width.
        heads: Query heads.
        ffn: Width of each of the three feed-forward matrices.
        vocab: Vocabulary rows.
        kv_heads: Key-value heads; divides heads; heads if not given.
        head_dim: Width of a head; hidden / heads if not given.
        tied: Whether the head uses the embedding's weight.
        qkv_bias: Whether q, k and v have biases.
        positions: Longest sequence.
        rope_theta: Base of the rotary frequencies.
        norm_eps: Epsilon of the norms.
        name: Name to show.

    Raises:
        ValueError: If a size is not positive or does not divide.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    _positive("llama", layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab, kv_heads=kv_heads,
              positions=positions)  # fmt: skip
    _divides("llama", "heads", heads, "kv_heads", kv_heads)
    if head_dim is None:
        _divides("llama", "hidden", hidden, "heads", heads)
        head_dim = hidden // heads
    _positive("llama", head_dim=head_dim)
    config = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "vocab": vocab, "kv_heads": kv_heads,
              "head_dim": head_dim, "tied": tied, "qkv_bias": qkv_bias, "positions": positions,
              "rope_theta": rope_theta, "norm_eps": norm_eps}  # fmt: skip
    dims = {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn}
    shapes = _llama_shapes(hidden, heads * head_dim, kv_heads * head_dim, ffn, qkv_bias)
    found = (
        LayerSpec("embed.tok", "embedding", _params("embed.tok", {"weight": (vocab, hidden)}), (),
                  {"hidden": hidden, "vocab": vocab}),
        *(LayerSpec(f"blocks.{at}", "llama_block", _params(f"blocks.{at}", shapes), (), dims) for at in range(layers)),
        *_head(config, {"weight": (hidden,)}, "rms_norm"),
    )  # fmt: skip
    return ModelSpec(name, "llama", config, found)


def _llama_shapes(hidden: int, query: int, key: int, ffn: int, qkv_bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"norm1.weight": (hidden,)}
    for letter, width in (("q", query), ("k", key), ("v", key)):
        shapes[f"attn.{letter}.weight"] = (width, hidden)
        if qkv_bias:
            shapes[f"attn.{letter}.bias"] = (width,)
    return {**shapes, "attn.o.weight": (hidden, query), "norm2.weight": (hidden,), "mlp.gate.weight": (ffn, hidden),
            "mlp.up.weight": (ffn, hidden), "mlp.down.weight": (hidden, ffn)}  # fmt: skip


def mlp(*, widths: Sequence[int], bias: bool = True, name: str = "mlp") -> ModelSpec:
    """Describe a multi-layer perceptron: linear layers with relu between them and a mean squared error.

    Args:
        widths: Width of the input and of each layer's output; at least two.
        bias: Whether layers have biases.
        name: Name to show.

    Raises:
        ValueError: If a width is not positive or there are fewer than two.
    """
    if len(widths) < 2:
        raise ValueError(f"mlp: widths {list(widths)} needs at least an input and an output width")
    _positive("mlp", **{f"widths[{at}]": width for at, width in enumerate(widths)})
    found = []
    for at, (inside, outside) in enumerate(pairwise(widths)):
        shapes: dict[str, tuple[int, ...]] = {"weight": (outside, inside), **({"bias": (outside,)} if bias else {})}
        dims = {"inside": inside, "outside": outside, "last": int(at == len(widths) - 2), "first": int(at == 0)}
        found.append(LayerSpec(f"layers.{at}", "mlp_layer", _params(f"layers.{at}", shapes), (), dims))
    found.append(LayerSpec("loss", "mse", (), (), {"outside": widths[-1]}))
    return ModelSpec(name, "mlp", {"widths": list(widths), "bias": bias}, tuple(found))


def from_dict(data: Mapping[str, Any]) -> ModelSpec:
    """Read what `ModelSpec.to_dict` wrote.

    Raises:
        ValueError: If the family is unknown or its sizes are wrong.
    """
    makers: dict[str, Callable[..., ModelSpec]] = {"gpt": gpt, "llama": llama, "mlp": mlp, "count": count}
    family = data.get("family")
    if family not in makers:
        raise ValueError(f"model family {family!r} is not known; known: {' '.join(makers)}")
    try:
        return makers[family](**data["config"], name=data.get("name", family))
    except TypeError as error:
        raise ValueError(f"model {data.get('name', family)!r}: {error}") from None
