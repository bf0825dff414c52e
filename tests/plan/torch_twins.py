"""Plain torch twins of the reference layers, one function a layer, for counting what autograd keeps."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlab.plan import LayerSpec

Weights = dict[str, Tensor]


def weights_of(layer: LayerSpec, dtype: torch.dtype) -> Weights:
    """Random trainable weights by name inside the layer."""
    made = {}
    for param in layer.params:
        short = param.name.removeprefix(f"{layer.name}.")
        made[short] = torch.randn(param.shape).mul_(0.02).to(dtype).requires_grad_()
    return made


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the compute dtype, by halves."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def gpt_block(layer: LayerSpec, w: Weights, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    rows, seq, hidden = x.shape
    heads = layer.dims["heads"]
    a = F.layer_norm(x, (hidden,), w["ln1.weight"], w.get("ln1.bias"))
    qkv = F.linear(a, w["attn.qkv.weight"], w.get("attn.qkv.bias"))
    q, k, v = (t.view(rows, seq, heads, -1).transpose(1, 2) for t in qkv.split(hidden, -1))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, seq, hidden)
    x = x + F.linear(a, w["attn.proj.weight"], w.get("attn.proj.bias"))
    a = F.layer_norm(x, (hidden,), w["ln2.weight"], w.get("ln2.bias"))
    a = F.gelu(F.linear(a, w["mlp.up.weight"], w.get("mlp.up.bias")), approximate="tanh")
    return x + F.linear(a, w["mlp.down.weight"], w.get("mlp.down.bias"))


def llama_block(layer: LayerSpec, w: Weights, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    rows, seq, hidden = x.shape
    width = layer.dims["head_dim"]
    a = F.rms_norm(x, (hidden,), w["norm1.weight"], 1e-5)
    q, k, v = (
        F.linear(a, w[f"attn.{n}.weight"], w.get(f"attn.{n}.bias")).view(rows, seq, -1, width).transpose(1, 2)
        for n in "qkv"
    )
    q, k = rotate(q, *tables), rotate(k, *tables)
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    x = x + F.linear(a.transpose(1, 2).reshape(rows, seq, -1), w["attn.o.weight"])
    a = F.rms_norm(x, (hidden,), w["norm2.weight"], 1e-5)
    a = F.silu(F.linear(a, w["mlp.gate.weight"])) * F.linear(a, w["mlp.up.weight"])
    return x + F.linear(a, w["mlp.down.weight"])


BLOCKS: dict[str, Callable[[LayerSpec, Weights, Tensor, tuple[Tensor, ...]], Tensor]] = {
    "gpt_block": gpt_block,
    "llama_block": llama_block,
}


def kept(run: Callable[[], Tensor], not_counted: list[Tensor]) -> list[tuple[int, tuple[int, ...], str]]:
    """Bytes, shape and dtype of each storage that `run` keeps for backward, except those of the given tensors."""
    skip = {tensor.untyped_storage().data_ptr() for tensor in not_counted}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    found: dict[int, tuple[int, tuple[int, ...], str]] = {}
    for tensor in alive:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skip:
            found.setdefault(storage.data_ptr(), (storage.nbytes(), tuple(tensor.shape), str(tensor.dtype)))
    assert result.requires_grad
    return list(found.values())
