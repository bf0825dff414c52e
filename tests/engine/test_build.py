"""The reference modules against their descriptions and against Hugging Face's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.engine.build import build
from shardlab.plan import PRESETS, ModelSpec, count, gpt, llama, mlp, preset
from shardlab.zero.units import find_units

GPT = gpt(layers=2, hidden=16, heads=4, vocab=31, positions=12)
LLAMA = llama(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=31, positions=12)
MODELS = {
    "gpt": GPT,
    "gpt-untied": gpt(layers=2, hidden=16, heads=4, vocab=31, positions=12, tied=False, bias=False),
    "llama": LLAMA,
    "llama-tied": llama(layers=2, hidden=16, heads=4, ffn=24, vocab=31, positions=12, tied=True, qkv_bias=True),
}


def tokens(rows: int = 3, seq: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    both = torch.randint(0, 31, (rows, seq + 1), generator=generator)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


@pytest.mark.parametrize("name", PRESETS)
def test_names_and_shapes_of_every_preset(name: str) -> None:
    spec = preset(name)
    with FakeTensorMode():
        model = build(spec)
    assert [(key, tuple(p.shape)) for key, p in model.named_parameters()] == [(p.name, p.shape) for p in spec.params]
    assert [(key, tuple(b.shape)) for key, b in model.named_buffers()] == [(b.name, b.shape) for b in spec.buffers]


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "qwen2.5-0.5b", "mlp"])
def test_units_of_zero_are_those_of_the_description(name: str) -> None:
    spec = preset(name)
    with FakeTensorMode():
        units = find_units(build(spec))
    assert [(unit.name, list(unit.params)) for unit in units] == [
        (unit.name, [param.name for param in unit.params]) for unit in spec.units
    ]


@pytest.mark.parametrize("name", MODELS)
def test_loss_is_the_cross_entropy_of_the_scores(name: str) -> None:
    torch.manual_seed(1)
    model, (ids, targets) = build(MODELS[name]), tokens()
    scores, loss = model(ids), model(ids, targets)
    assert scores.shape == (3, 9, 31)
    picked = scores.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(loss, -picked.mean())
    assert abs(loss.item() - math.log(31)) < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_a_token_sees_those_before_it_only(name: str) -> None:
    torch.manual_seed(1)
    model, (ids, _) = build(MODELS[name]), tokens()
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 31
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("name", MODELS)
def test_recompute_gives_the_same_bits(name: str) -> None:
    ids, targets = tokens()
    grads = []
    for recompute in ("none", "full"):
        torch.manual_seed(1)
        model = build(MODELS[name], recompute)
        model(ids, targets).backward()
        grads.append([p.grad for p in model.parameters()])
    assert len(grads[0]) == len(MODELS[name].params)
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_initial_weights_are_those_of_gpt_2() -> None:
    torch.manual_seed(1)
    model = build(gpt(layers=8, hidden=64, heads=4, vocab=500, positions=64))
    std = {name: p.std().item() for name, p in model.named_parameters() if p.dim() > 1}
    assert std.pop("embed.tok.weight") == pytest.approx(0.02, rel=0.05)
    for name, value in std.items():
        small = name.endswith(("attn.proj.weight", "mlp.down.weight"))
        assert value == pytest.approx(0.02 / 4 if small else 0.02, rel=0.05), name
    for name, p in model.named_parameters():
        if p.dim() == 1:
            assert torch.all(p == (0 if name.endswith("bias") else 1)), name


def hf_gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 4, "vocab_size": 31, "n_positions": 12}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    names = {"transformer.wte": "embed.tok", "transformer.wpe": "embed.pos", "transformer.ln_f": "head.norm",
             "transformer.h.": "blocks.", "ln_1": "ln1", "ln_2": "ln2", "attn.c_attn": "attn.qkv",
             "attn.c_proj": "attn.proj", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}  # fmt: skip
    found = {}
    for key, value in theirs.state_dict().items():
        transposed = value.dim() == 2 and ".c_" in key  # its linear layers keep (in, out)
        for theirs_name, ours in names.items():
            key = key.replace(theirs_name, ours)
        found[key.replace("lm_head", "head.out")] = value.t() if transposed else value
    return theirs, found


def hf_llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaForCausalLM(
        LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, vocab_size=31, max_position_embeddings=12, tie_word_embeddings=False,
                    rms_norm_eps=1e-5)
    ).eval()  # fmt: skip
    names = {"model.embed_tokens": "embed.tok", "model.layers.": "blocks.", "model.norm": "head.norm",
             "lm_head": "head.out", "self_attn": "attn", "input_layernorm": "norm1",
             "post_attention_layernorm": "norm2", "_proj": ""}  # fmt: skip
    found = {}
    for key, value in theirs.state_dict().items():
        for theirs_name, ours in names.items():
            key = key.replace(theirs_name, ours)
        found[key] = value
    return theirs, found


@pytest.mark.parametrize(("spec", "other"), [(GPT, hf_gpt2), (LLAMA, hf_llama)], ids=["gpt2", "llama"])
def test_same_scores_as_hugging_face(spec: ModelSpec, other: Any) -> None:
    torch.manual_seed(3)
    theirs, weights = other()
    ours, (ids, _) = build(spec), tokens()
    ours.load_state_dict(weights)
    with torch.no_grad():
        for p in ours.parameters():  # far from zero, so that every part matters
            p.mul_(5)
        for p in theirs.parameters():
            p.mul_(5)
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_mlp_is_linear_layers_with_relu_between() -> None:
    torch.manual_seed(1)
    model, x, y = build(mlp(widths=[5, 7, 3])), torch.randn(4, 5), torch.randn(4, 3)
    w0, b0, w1, b1 = model.parameters()
    wanted = torch.relu(x @ w0.T + b0) @ w1.T + b1
    torch.testing.assert_close(model(x), wanted)
    torch.testing.assert_close(model(x, y), (wanted - y).square().mean())


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(ValueError, match="of which nothing can be built"):
        build(count(7.5e9))
    with pytest.raises(ValueError, match="recompute is 'some'"):
        build(GPT, "some")
    with pytest.raises(ValueError, match="has no blocks"):
        build(mlp(widths=[5, 7]), "full")
    with pytest.raises(ValueError, match="sequence of 13 tokens: this model has 12 positions"):
        build(GPT)(torch.zeros(1, 13, dtype=torch.int64))
    with pytest.raises(ValueError, match="head_dim is 5"):
        build(llama(layers=1, hidden=10, heads=2, ffn=8, vocab=7))
