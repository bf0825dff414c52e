"""The blocks: rotary positions, grouped heads, and what autograd keeps."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from shardlab.engine.blocks import GPTBlock, LlamaBlock, join_heads, rotary_tables, rotate, split_heads


def test_rotation_turns_pairs_by_the_angle_of_their_position() -> None:
    cos, sin = rotary_tables(50, 6, 10000.0)
    assert cos.shape == sin.shape == (50, 3)
    x = torch.randn(2, 3, 50, 6)
    turned = rotate(x, cos, sin)
    for position in (0, 1, 49):
        for pair in range(3):
            angle = position * 10000.0 ** (-2 * pair / 6)
            first, second = x[..., position, pair], x[..., position, pair + 3]
            torch.testing.assert_close(turned[..., position, pair], first * math.cos(angle) - second * math.sin(angle))
            torch.testing.assert_close(
                turned[..., position, pair + 3], second * math.cos(angle) + first * math.sin(angle)
            )


def test_products_of_rotated_heads_depend_on_the_distance_only() -> None:
    cos, sin = (table.double() for table in rotary_tables(40, 8, 10000.0))
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 40, 8) for _ in range(2))
    scores = (rotate(q, cos, sin) @ rotate(k, cos, sin).transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[5, 2], scores[33, 30], rtol=1e-6, atol=1e-6)
    assert abs(scores[5, 2] - scores[5, 4]) > 1e-6


def test_rotation_keeps_the_dtype_and_the_precision_of_the_tables() -> None:
    torch.manual_seed(0)
    cos, sin = rotary_tables(4096, 8, 10000.0)
    x = torch.randn(1, 1, 4096, 8)
    exact, turned = rotate(x, cos, sin), rotate(x.bfloat16(), cos, sin)
    assert turned.dtype is torch.bfloat16
    assert torch.equal(turned, rotate(x.bfloat16().float(), cos, sin).bfloat16())
    rough = rotate(x.bfloat16(), cos.bfloat16(), sin.bfloat16())
    assert (turned.float() - exact).square().mean() < 0.8 * (rough.float() - exact).square().mean()


def test_heads_split_and_join() -> None:
    x = torch.randn(2, 5, 12)
    assert split_heads(x, 3).shape == (2, 3, 5, 4)
    torch.testing.assert_close(split_heads(x, 3)[:, 1], x[..., 4:8])
    assert torch.equal(join_heads(split_heads(x, 3)), x)


def test_grouped_heads_share_keys_and_values() -> None:
    torch.manual_seed(0)
    cos, sin = rotary_tables(6, 4, 10000.0)
    grouped = LlamaBlock(16, heads=4, kv_heads=2, head_dim=4, ffn=24, norm_eps=1e-5)
    single = LlamaBlock(16, heads=4, kv_heads=4, head_dim=4, ffn=24, norm_eps=1e-5)
    weights = grouped.state_dict()
    for name in ("attn.k.weight", "attn.v.weight"):
        weights[name] = weights[name].view(2, 4, 16).repeat_interleave(2, 0).reshape(16, 16)
    single.load_state_dict(weights)
    x = torch.randn(2, 6, 16)
    torch.testing.assert_close(grouped(x, cos, sin), single(x, cos, sin))


@pytest.mark.parametrize("bias", [True, False])
def test_gpt_block_adds_two_sub_layers_to_its_input(bias: bool) -> None:
    torch.manual_seed(0)
    block, x = GPTBlock(8, heads=2, ffn=20, bias=bias), torch.randn(2, 6, 8)
    a = block.ln1(x)
    q, k, v = (F.linear(a, w, b) for w, b in zip(block.attn.qkv.weight.chunk(3),
               block.attn.qkv.bias.chunk(3) if bias else (None,) * 3, strict=True))  # fmt: skip
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(4)
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v[..., part])
    x1 = x + block.attn.proj(torch.cat(heads, -1))
    wanted = x1 + block.mlp.down(F.gelu(block.mlp.up(block.ln2(x1)), approximate="tanh"))
    torch.testing.assert_close(block(x), wanted, rtol=1e-5, atol=1e-5)
    assert any(name.endswith("bias") for name, _ in block.named_parameters()) == bias
