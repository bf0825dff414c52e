"""The reference models, made from their descriptions.

    from shardlab.engine.build import build
    from shardlab.plan import gpt, load_model

    model = build(load_model("gpt2"))                       # a preset, a config.json
    model = build(gpt(layers=6, hidden=160, heads=5, vocab=256, positions=256))   # 1.9 M parameters, one byte a token
    loss = model(ids, targets)                              # int64, (rows, sequence); targets[:, i] follows ids[:, i]
    logits = model(ids)                                     # (rows, sequence, vocabulary)

A decoder, as a tree of modules, each line with what it owns:

    embed.tok          token rows         embed.pos      position rows (GPT)
    rope               rotary tables, which nobody trains (Llama)
    blocks.0 ...       see blocks.py
    head.norm          last norm          head.out       scores of the vocabulary; embed.tok's weight if tied

The modules are written for one process and know nothing of ranks: `shardlab.zero.shard` shares them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab.engine.blocks import GPTBlock, LlamaBlock, rotary_tables
from shardlab.plan.model import ModelSpec

__all__ = ["Decoder", "MLP", "build"]


def build(spec: ModelSpec, recompute: str = "none") -> nn.Module:
    """Make the module that a description stands for, with its names, shapes and order of parameters, in fp32.

    Draws from torch's random state, so the same seed gives the same weights.

    Args:
        spec: Of family gpt, llama or mlp.
        recompute: `full` to keep only the input of each block and to run it again in backward, or `none`.

    Returns:
        A module called as `module(inputs, targets=None)`: with targets the mean loss, else the outputs.

    Raises:
        ValueError: If the family has no module, or recompute is not known or has nothing to act on.
    """
    if recompute not in ("none", "full"):
        raise ValueError(f"recompute is {recompute!r}; want 'none' or 'full'")
    if spec.family in ("gpt", "llama"):
        model: nn.Module = Decoder(spec, recompute)
    elif spec.family == "mlp":
        if recompute == "full":
            raise ValueError(f"recompute is 'full', but model {spec.name!r} has no blocks; want 'none'")
        model = MLP(spec.config["widths"], spec.config["bias"])
    else:
        raise ValueError(f"model {spec.name!r} is a {spec.family}, of which nothing can be built; name a preset")
    return model


class Decoder(nn.Module):
    """Tokens in, scores of the next token out; GPT-like or Llama-like.

    Args:
        spec: Of family gpt or llama.
        recompute: As for `build`.
    """

    def __init__(self, spec: ModelSpec, recompute: str = "none") -> None:
        super().__init__()
        c = spec.config
        self.positions, self.recompute = int(c["positions"]), recompute
        llama = spec.family == "llama"
        self.embed = _Embedding(c["vocab"], c["hidden"], None if llama else self.positions)
        self.rope = _Rotary(self.positions, c["head_dim"], c["rope_theta"]) if llama else None
        self.blocks = nn.ModuleList(_llama_block(c) if llama else _gpt_block(c) for _ in range(c["layers"]))
        norm = nn.RMSNorm(c["hidden"], eps=c["norm_eps"]) if llama else nn.LayerNorm(c["hidden"], bias=c["bias"])
        self.head = _Head(norm, c["hidden"], c["vocab"])
        if c["tied"]:
            self.head.out.weight = self.embed.tok.weight
        _initialise(self, residual_std=0.02 / math.sqrt(2 * c["layers"]))

    def forward(self, ids_BS: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        """Predict the next token at every position.

        Args:
            ids_BS: Tokens, int64, (rows, sequence).
            targets_BS: The tokens to predict, int64, same shape; -100 where nothing is to be predicted.

        Returns:
            Scores (rows, sequence, vocabulary); with targets the mean cross-entropy in nats, a scalar.

        Raises:
            ValueError: If the sequence is longer than the model's positions.
        """
        length = ids_BS.shape[1]
        if length > self.positions:
            raise ValueError(f"sequence of {length} tokens: this model has {self.positions} positions")
        x_BSH = self.embed(ids_BS)
        tables = () if self.rope is None else self.rope(length)
        for block in self.blocks:
            x_BSH = self._run(block, x_BSH, *tables)
        logits_BSV = self.head(x_BSH)
        if targets_BS is None:
            return logits_BSV  # type: ignore[no-any-return]
        # In fp32 at least: a sum over a vocabulary in bf16 is right to two digits only.
        wide = torch.promote_types(logits_BSV.dtype, torch.float32)
        return F.cross_entropy(logits_BSV.flatten(0, 1).to(wide), targets_BS.flatten())

    def _run(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        if self.recompute == "none" or not torch.is_grad_enabled():
            return block(*inputs)  # type: ignore[no-any-return]
        # No block draws random numbers, so the random state (5 kB a block) need not be kept.
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    """Rows of a table by token, plus rows by position where positions are learned."""

    def __init__(self, vocab: int, hidden: int, positions: int | None) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, hidden)
        self.pos = None if positions is None else nn.Embedding(positions, hidden)

    def forward(self, ids_BS: Tensor) -> Tensor:
        x_BSH = self.tok(ids_BS)
        if self.pos is None:
            return x_BSH  # type: ignore[no-any-return]
        return x_BSH + self.pos(torch.arange(ids_BS.shape[1], device=ids_BS.device))  # type: ignore[no-any-return]


class _Rotary(nn.Module):
    """The rotary tables: buffers, the same on every rank, in fp32 whatever the weights are."""

    cos_SE: Tensor
    sin_SE: Tensor

    def __init__(self, positions: int, head_dim: int, theta: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"head_dim is {head_dim}; rotary positions need an even one")
        for name, table_SE in zip(("cos_SE", "sin_SE"), rotary_tables(positions, head_dim, theta), strict=True):
            self.register_buffer(name, table_SE, persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        return self.cos_SE[:length], self.sin_SE[:length]


class _Head(nn.Module):
    """The last norm, and the product with the output weight."""

    def __init__(self, norm: nn.Module, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm = norm
        self.out = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.out(self.norm(x_BSH))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Linear layers with relu between them, and a mean squared error.

    Args:
        widths: Width of the input and of each layer's output.
        bias: Whether layers have biases.
    """

    def __init__(self, widths: Iterable[int], bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inside, outside, bias=bias) for inside, outside in pairwise(widths))

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the last layer's output, (rows, width), or with targets of that shape the mean squared error."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        x = self.layers[-1](x)
        return x if targets is None else F.mse_loss(x, targets)


def _gpt_block(c: Any) -> GPTBlock:
    return GPTBlock(c["hidden"], c["heads"], c["ffn"], c["bias"])


def _llama_block(c: Any) -> LlamaBlock:
    return LlamaBlock(c["hidden"], c["heads"], c["kv_heads"], c["head_dim"], c["ffn"], c["norm_eps"], c["qkv_bias"])


@torch.no_grad()
def _initialise(model: nn.Module, residual_std: float) -> None:
    """Draw weights as GPT-2 does: what is added to the residual stream starts smaller the more blocks there are.

    Source: Radford et al. 2019 (GPT-2), section 2.3; Brown et al. 2020 (GPT-3), section 2.1.
    """
    for name, param in model.named_parameters():
        if name.endswith(("attn.proj.weight", "attn.o.weight", "mlp.down.weight")):
            nn.init.normal_(param, std=residual_std)
        elif param.dim() > 1:
            nn.init.normal_(param, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(param)
