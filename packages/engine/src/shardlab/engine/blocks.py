"""The transformer blocks of the reference models, written to be read.

A suffix names the dimensions of a tensor, so that a shape can be checked by reading:

    B batch rows   S sequence   H hidden width   F feed-forward width
    N query heads   K key-value heads   D width of a head   E half of it

Names and shapes of parameters are those of `shardlab.plan.families`; a test holds them together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPTBlock", "LlamaBlock", "rotary_tables", "rotate"]


class GPTBlock(nn.Module):
    """One pre-norm block of a GPT-2-like decoder: attention, then a feed-forward layer, each added to its input.

    Args:
        hidden: Width.
        heads: Attention heads; divides hidden.
        ffn: Width of the feed-forward layer.
        bias: Whether linear layers and norms have biases.

    Source: Radford et al. 2019 (GPT-2), section 2.3.
    """

    def __init__(self, hidden: int, heads: int, ffn: int, bias: bool = True) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(hidden, bias=bias)
        self.attn = _FusedAttention(hidden, heads, bias)
        self.ln2 = nn.LayerNorm(hidden, bias=bias)
        self.mlp = _GeluMLP(hidden, ffn, bias)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Run the block; shape and dtype stay."""
        x_BSH = x_BSH + self.attn(self.ln1(x_BSH))
        return x_BSH + self.mlp(self.ln2(x_BSH))  # type: ignore[no-any-return]


class _FusedAttention(nn.Module):
    """Causal attention whose queries, keys and values come from one matrix product."""

    def __init__(self, hidden: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.proj = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x_BSH: Tensor) -> Tensor:
        q_BSH, k_BSH, v_BSH = self.qkv(x_BSH).chunk(3, dim=-1)
        q_BNSD, k_BNSD, v_BNSD = (split_heads(x, self.heads) for x in (q_BSH, k_BSH, v_BSH))
        a_BNSD = F.scaled_dot_product_attention(q_BNSD, k_BNSD, v_BNSD, is_causal=True)
        return self.proj(join_heads(a_BNSD))  # type: ignore[no-any-return]


class _GeluMLP(nn.Module):
    """Widen, GELU (tanh approximation), narrow."""

    def __init__(self, hidden: int, ffn: int, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn, bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x_BSH: Tensor) -> Tensor:
        h_BSF = F.gelu(self.up(x_BSH), approximate="tanh")
        return self.down(h_BSF)  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """One block of a Llama-like decoder: RMS norms, rotary positions, grouped heads, a gated feed-forward layer.

    Args:
        hidden: Width.
        heads: Query heads.
        kv_heads: Key-value heads; each serves heads / kv_heads query heads.
        head_dim: Width of a head.
        ffn: Width of each of the three feed-forward matrices.
        norm_eps: Epsilon of the norms.
        qkv_bias: Whether q, k and v have biases.

    Source: Touvron et al. 2023 (Llama), section 2.2; Ainslie et al. 2023 (grouped heads).
    """

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, norm_eps: float, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(hidden, eps=norm_eps)
        self.attn = _GroupedAttention(hidden, heads, kv_heads, head_dim, qkv_bias)
        self.norm2 = nn.RMSNorm(hidden, eps=norm_eps)
        self.mlp = _GatedMLP(hidden, ffn)

    def forward(self, x_BSH: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
        """Run the block; shape and dtype stay."""
        x_BSH = x_BSH + self.attn(self.norm1(x_BSH), cos_SE, sin_SE)
        return x_BSH + self.mlp(self.norm2(x_BSH))  # type: ignore[no-any-return]


class _GroupedAttention(nn.Module):
    """Causal attention in which several query heads share one key-value head."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q = nn.Linear(hidden, heads * head_dim, bias=qkv_bias)
        self.k = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.v = nn.Linear(hidden, kv_heads * head_dim, bias=qkv_bias)
        self.o = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x_BSH: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
        q_BNSD = rotate(split_heads(self.q(x_BSH), self.heads), cos_SE, sin_SE)
        k_BKSD = rotate(split_heads(self.k(x_BSH), self.kv_heads), cos_SE, sin_SE)
        v_BKSD = split_heads(self.v(x_BSH), self.kv_heads)
        grouped = self.heads != self.kv_heads
        a_BNSD = F.scaled_dot_product_attention(q_BNSD, k_BKSD, v_BKSD, is_causal=True, enable_gqa=grouped)
        return self.o(join_heads(a_BNSD))  # type: ignore[no-any-return]


class _GatedMLP(nn.Module):
    """Two widenings, one of which gates the other, then narrow (SwiGLU)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        h_BSF = F.silu(self.gate(x_BSH)) * self.up(x_BSH)
        return self.down(h_BSF)  # type: ignore[no-any-return]


def split_heads(x_BSH: Tensor, heads: int) -> Tensor:
    """Return a view of shape (B, N, S, D)."""
    return x_BSH.view(*x_BSH.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x_BNSD: Tensor) -> Tensor:
    """Return shape (B, S, N x D)."""
    return x_BNSD.transpose(1, 2).flatten(2)


def rotary_tables(positions: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position's angles, fp32, each of shape (positions, head_dim / 2).

    Args:
        positions: Longest sequence.
        head_dim: Width of a head, even.
        theta: Base of the frequencies.

    Source: Su et al. 2021 (RoFormer), section 3.2.2.
    """
    exponents_E = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles_SE = torch.outer(torch.arange(positions, dtype=torch.float64), theta**-exponents_E)
    return angles_SE.cos().float(), angles_SE.sin().float()


def rotate(x_BNSD: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of a head by its position's angle.

    Computed in the dtype of the tables, fp32, and rounded once, because a table in bf16 is right to two digits only.
    Autograd keeps only the tables for it.
    """
    first_BNSE, second_BNSE = x_BNSD.chunk(2, dim=-1)
    turned = (first_BNSE * cos_SE - second_BNSE * sin_SE, second_BNSE * cos_SE + first_BNSE * sin_SE)
    return torch.cat(turned, dim=-1).to(x_BNSD.dtype)
