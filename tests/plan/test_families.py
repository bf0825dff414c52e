"""Constructors refuse sizes that do not fit, and count what the modules would hold."""

import pytest

from shardlab.plan import from_dict, gpt, llama, mlp


def test_gated_feed_forward_has_three_matrices() -> None:
    model = llama(layers=1, hidden=8, heads=2, ffn=16, vocab=3)
    shapes = {p.name: p.shape for p in model.params}
    assert [shapes[f"blocks.0.mlp.{n}.weight"] for n in ("gate", "up", "down")] == [(16, 8), (16, 8), (8, 16)]


def test_grouped_heads_and_biases() -> None:
    model = llama(layers=1, hidden=8, heads=4, kv_heads=2, ffn=16, vocab=3, qkv_bias=True)
    shapes = {p.name: p.shape for p in model.params}
    assert shapes["blocks.0.attn.k.weight"] == (4, 8) and shapes["blocks.0.attn.k.bias"] == (4,)
    assert shapes["blocks.0.attn.o.weight"] == (8, 8) and "blocks.0.attn.o.bias" not in shapes


def test_gpt_without_biases() -> None:
    assert not [
        p.name for p in gpt(layers=1, hidden=8, heads=2, vocab=3, positions=4, bias=False).params if "bias" in p.name
    ]


def test_errors_name_the_sizes() -> None:
    with pytest.raises(ValueError, match="heads 3 does not divide hidden 8"):
        gpt(layers=1, hidden=8, heads=3, vocab=3, positions=4)
    with pytest.raises(ValueError, match="kv_heads 3 does not divide heads 4"):
        llama(layers=1, hidden=8, heads=4, kv_heads=3, ffn=16, vocab=3)
    with pytest.raises(ValueError, match="layers is 0"):
        gpt(layers=0, hidden=8, heads=2, vocab=3, positions=4)
    with pytest.raises(ValueError, match="at least an input and an output"):
        mlp(widths=[3])
    with pytest.raises(ValueError, match="family 'rnn'"):
        from_dict({"family": "rnn", "config": {}})
    with pytest.raises(ValueError, match="unexpected keyword argument 'depth'"):
        from_dict({"family": "gpt", "config": {"depth": 3}})
