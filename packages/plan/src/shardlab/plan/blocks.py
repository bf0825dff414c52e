"""What the reference layers save for backward, hold for a moment, and compute.

`saved_tensors` lists the storages that autograd keeps, each once, in the layer whose forward keeps it first; parameters
and the rotary tables (buffers of the model) are not among them. For PyTorch's CPU kernels the lists are checked to the
byte against saved-tensor hooks. Fused CUDA kernels keep less of a norm; their lists are formulas, not yet checked.

Legend: B micro-batch, S sequence, T = B S tokens, H hidden, F feed-forward, V vocabulary, N heads, K key-value heads,
D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from shardlab.plan.dtypes import itemsize
from shardlab.plan.model import LayerSpec, SavedTensor


@dataclass(frozen=True, slots=True)
class Batch:
    """The sizes of one micro-batch on one rank.

    Args:
        rows: Samples in the micro-batch.
        seq: Tokens of each sample; 1 for models without a sequence.
        dtype: Compute dtype.
        kernels: `cpu`, whose lists are checked, or `cuda`, whose lists are read off the kernels' signatures.
    """

    rows: int
    seq: int
    dtype: str = "fp32"
    kernels: str = "cpu"

    @property
    def tokens(self) -> int:
        """Rows times sequence."""
        return self.rows * self.seq


Saved = tuple[SavedTensor, ...]


def _wide(batch: Batch) -> str:
    """Return the dtype of statistics and of the loss."""
    return "fp64" if batch.dtype == "fp64" else "fp32"


def _embedding(layer: LayerSpec, batch: Batch) -> Saved:
    return (SavedTensor("token ids", (batch.rows, batch.seq), "int64"),)


def _positions(layer: LayerSpec, batch: Batch) -> Saved:
    return (SavedTensor("position ids", (batch.seq,), "int64"),)


def _layer_norm(name: str, layer: LayerSpec, batch: Batch) -> Saved:
    # The CPU kernel keeps mean and 1/std in the dtype of the input; CUDA keeps both in fp32.
    stats, kept = (batch.rows, batch.seq, 1), _wide(batch) if batch.kernels == "cuda" else batch.dtype
    return (
        SavedTensor(f"{name} input", (batch.rows, batch.seq, layer.dims["hidden"]), batch.dtype),
        SavedTensor(f"{name} mean", stats, kept),
        SavedTensor(f"{name} 1/std", stats, kept),
    )


def _rms_norm(name: str, layer: LayerSpec, batch: Batch) -> Saved:
    # The composite CPU kernel computes in fp32: it keeps its input (widened, unless it is wide) and the normalised one.
    # The fused CUDA kernel keeps its input as it is, and no normalised one.
    wide, shape = _wide(batch), (batch.rows, batch.seq, layer.dims["hidden"])
    if batch.kernels == "cuda":
        return (
            SavedTensor(f"{name} input", shape, batch.dtype),
            SavedTensor(f"{name} 1/rms", (batch.rows, batch.seq, 1), wide),
        )
    return (
        SavedTensor(f"{name} input", shape, wide),
        SavedTensor(f"{name} 1/rms", (batch.rows, batch.seq, 1), wide),
        SavedTensor(f"{name} normalised", shape, wide),
    )


def _attention(layer: LayerSpec, batch: Batch) -> Saved:
    # Flash attention keeps its output, which a GPT block's projection keeps too, and one log-sum-exp per query.
    heads, head_dim = layer.dims["heads"], layer.dims["head_dim"]
    return (
        SavedTensor("attention output", (batch.rows, batch.seq, heads, head_dim), batch.dtype),
        SavedTensor("attention log-sum-exp", (batch.rows, heads, batch.seq), _wide(batch)),
    )


def _gpt_block(layer: LayerSpec, batch: Batch) -> Saved:
    def act(name: str, width: int) -> SavedTensor:
        return SavedTensor(name, (batch.rows, batch.seq, width), batch.dtype)

    hidden, ffn = layer.dims["hidden"], layer.dims["ffn"]
    return (
        *_layer_norm("ln1", layer, batch),
        act("qkv input", hidden),
        act("q, k and v", 3 * hidden),
        *_attention(layer, batch),
        *_layer_norm("ln2", layer, batch),
        act("up input", hidden),
        act("gelu input", ffn),
        act("down input", ffn),
    )


def _llama_block(layer: LayerSpec, batch: Batch) -> Saved:
    def act(name: str, width: int) -> SavedTensor:
        return SavedTensor(name, (batch.rows, batch.seq, width), batch.dtype)

    dims = layer.dims
    key = dims["kv_heads"] * dims["head_dim"]
    return (
        *_rms_norm("norm1", layer, batch),
        act("q, k and v input", dims["hidden"]),
        act("rotated q", dims["heads"] * dims["head_dim"]),
        act("rotated k", key),
        act("v", key),
        *_attention(layer, batch),
        # Rotated queries lie head by head; on CPU so does attention's output, and the projection needs a copy.
        *((act("o input", dims["heads"] * dims["head_dim"]),) if batch.kernels == "cpu" else ()),
        *_rms_norm("norm2", layer, batch),
        act("gate and up input", dims["hidden"]),
        act("silu input", dims["ffn"]),
        act("silu output", dims["ffn"]),
        act("up output", dims["ffn"]),
        act("down input", dims["ffn"]),
    )


def _linear_head(layer: LayerSpec, batch: Batch) -> Saved:
    return (SavedTensor("head input", (batch.rows, batch.seq, layer.dims["hidden"]), batch.dtype),)


def _cross_entropy(layer: LayerSpec, batch: Batch) -> Saved:
    # Computed over fp32 logits whatever the compute dtype is.
    wide = _wide(batch)
    return (
        SavedTensor("log-probabilities", (batch.tokens, layer.dims["vocab"]), wide),
        SavedTensor("targets", (batch.tokens,), "int64"),
        SavedTensor("total weight", (), wide),
    )


def _mlp_layer(layer: LayerSpec, batch: Batch) -> Saved:
    # relu keeps its result, which is the next layer's input: it is listed there.
    return (SavedTensor("input", (batch.rows, layer.dims["inside"]), batch.dtype),)


def _mse(layer: LayerSpec, batch: Batch) -> Saved:
    shape = (batch.rows, layer.dims["outside"])
    return (SavedTensor("output", shape, batch.dtype), SavedTensor("target", shape, batch.dtype))


_SAVED: Mapping[str, Callable[[LayerSpec, Batch], Saved]] = MappingProxyType(
    {
        "embedding": _embedding,
        "positions": _positions,
        "gpt_block": _gpt_block,
        "llama_block": _llama_block,
        "layer_norm": lambda layer, batch: _layer_norm("norm", layer, batch),
        "rms_norm": lambda layer, batch: _rms_norm("norm", layer, batch),
        "linear_head": _linear_head,
        "cross_entropy": _cross_entropy,
        "mlp_layer": _mlp_layer,
        "mse": _mse,
        "count": lambda layer, batch: (),
    }
)


def saved_tensors(layer: LayerSpec, batch: Batch) -> Saved:
    """Return the storages that the forward pass of a layer keeps for its backward pass."""
    return _SAVED[layer.kind](layer, batch)


def saved_bytes(layer: LayerSpec, batch: Batch) -> int:
    """Return the bytes that the forward pass of a layer keeps for its backward pass."""
    return _saved_bytes(layer.kind, tuple(layer.dims.items()), batch)


@lru_cache(maxsize=256)
def _saved_bytes(kind: str, dims: tuple[tuple[str, int], ...], batch: Batch) -> int:
    layer = LayerSpec("", kind, dims=dict(dims))
    return sum(tensor.nbytes for tensor in saved_tensors(layer, batch))


def checkpoint_tensors(layer: LayerSpec, batch: Batch) -> Saved:
    """Return what a recomputed layer keeps instead: its input."""
    return (SavedTensor("checkpointed input", (batch.rows, batch.seq, layer.dims["hidden"]), batch.dtype),)


def transient_bytes(layer: LayerSpec, batch: Batch, backward: bool) -> int:
    """Return the largest bytes of temporaries a layer holds beside what it saves; a bound, not an exact count.

    Forward: results that nobody keeps. Backward: gradients of activations that are alive together.

    Args:
        layer: The layer.
        batch: The micro-batch.
        backward: Whether for the backward pass.
    """
    size, tokens, dims = itemsize(batch.dtype), batch.tokens, layer.dims
    if layer.kind in ("gpt_block", "llama_block"):
        # forward: a sub-layer's result and the residual sum; backward: the residual's gradient beside those of the
        # widest matrices (down input and gelu input; with a gate also up output)
        wide = dims["ffn"] * (3 if layer.kind == "llama_block" else 2)
        return size * tokens * (dims["hidden"] + wide if backward else 2 * dims["hidden"])
    if layer.kind == "cross_entropy":
        # forward: fp32 logits, beside the narrow ones they were widened from; backward: gradients of the
        # log-probabilities and of the fp32 logits
        wide = max(size, 4)
        logits = tokens * dims["vocab"]
        return logits * (2 * wide if backward else wide + (size if size < wide else 0))
    if layer.kind == "mlp_layer":
        return size * batch.rows * (dims["inside"] + dims["outside"] if backward else dims["outside"])
    if layer.kind == "mse":
        return size * batch.rows * dims["outside"]
    if layer.kind == "linear_head" and backward:
        return size * tokens * (dims["vocab"] + dims["hidden"])
    return size * tokens * dims.get("hidden", 0)


def forward_flops(layer: LayerSpec, batch: Batch) -> int:
    """Return the floating-point operations of matrix products in a layer's forward pass.

    A product of (m, k) and (k, n) counts 2 m k n. Attention counts its two products in full, causal or not, as
    utilisation is usually reported. Norms, element-wise work and look-ups count nothing.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), appendix; Chowdhery et al. 2022 (PaLM), appendix B.
    """
    dims, tokens = layer.dims, batch.tokens
    if layer.kind in ("gpt_block", "llama_block"):
        weights = sum(param.numel for param in layer.params if len(param.shape) == 2)
        return 2 * tokens * weights + 4 * tokens * batch.seq * dims["heads"] * dims["head_dim"]
    if layer.kind == "linear_head":
        return 2 * tokens * dims["hidden"] * dims["vocab"]
    if layer.kind == "mlp_layer":
        return 2 * batch.rows * dims["inside"] * dims["outside"]
    return 0


def backward_flops(layer: LayerSpec, batch: Batch) -> int:
    """Return the floating-point operations of matrix products in a layer's backward pass: twice the forward's."""
    return 2 * forward_flops(layer, batch)
