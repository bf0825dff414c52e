"""The lists of saved tensors equal what autograd keeps, to the byte; flops equal torch's flop counter."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardlab.plan import Batch, LayerSpec, ModelSpec, gpt, llama, mlp
from shardlab.plan.blocks import backward_flops, forward_flops, saved_bytes, saved_tensors, transient_bytes
from tests.plan.torch_twins import BLOCKS, kept, weights_of

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
MODELS = {
    "gpt": gpt(layers=1, hidden=48, heads=4, vocab=100, positions=32, ffn=144),
    "gpt-no-bias": gpt(layers=1, hidden=32, heads=2, vocab=100, positions=32, bias=False, tied=False),
    "llama": llama(layers=1, hidden=48, heads=4, ffn=80, vocab=100),
    "llama-grouped": llama(layers=1, hidden=48, heads=6, kv_heads=2, ffn=80, vocab=100, qkv_bias=True, head_dim=16),
}


def tables(layer: LayerSpec, seq: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(seq, layer.dims.get("head_dim", 2)).to(dtype) for _ in range(2))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_blocks_keep_what_the_list_says(model: ModelSpec, dtype: str) -> None:
    layer, batch = model.layer("blocks.0"), Batch(3, 20, dtype)
    weights = weights_of(layer, TORCH[dtype])
    x = torch.randn(3, 20, layer.dims["hidden"]).to(TORCH[dtype]).requires_grad_()
    rope = tables(layer, 20, TORCH[dtype])
    got = kept(lambda: BLOCKS[layer.kind](layer, weights, x, rope), [*weights.values(), *rope])
    assert sorted(size for size, _, _ in got) == sorted(t.nbytes for t in saved_tensors(layer, batch))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_embedding_head_and_loss(model: ModelSpec, dtype: str) -> None:
    batch, torch_dtype = Batch(3, 20, dtype), TORCH[dtype]
    hidden = model.config["hidden"]
    ids, targets = torch.randint(0, 100, (3, 20)), torch.randint(0, 100, (3, 20))
    table = torch.randn(100, hidden).to(torch_dtype).requires_grad_()
    assert sum(s for s, _, _ in kept(lambda: F.embedding(ids, table), [table])) == saved_bytes(
        model.layer("embed.tok"), batch
    )
    x = torch.randn(3, 20, hidden).to(torch_dtype).requires_grad_()
    norm = weights_of(model.layer("head.norm"), torch_dtype)

    def head() -> torch.Tensor:
        if model.family == "gpt":
            a = F.layer_norm(x, (hidden,), norm["weight"], norm.get("bias"))
        else:
            a = F.rms_norm(x, (hidden,), norm["weight"], 1e-5)
        logits = F.linear(a, table)
        return F.cross_entropy(logits.float().view(-1, 100), targets.view(-1))

    got = sorted(size for size, _, _ in kept(head, [table, *norm.values()]))
    layers = [model.layer(name) for name in ("head.norm", "head.out", "loss")]
    assert got == sorted(t.nbytes for layer in layers for t in saved_tensors(layer, batch))


def test_mlp_keeps_inputs_and_the_two_sides_of_the_error() -> None:
    model = mlp(widths=[5, 7, 3])
    batch = Batch(11, 1)
    weights = [weights_of(layer, torch.float32) for layer in model.layers[:-1]]
    x, y = torch.randn(11, 5), torch.randn(11, 3)

    def run() -> torch.Tensor:
        out = F.relu(F.linear(x, weights[0]["weight"], weights[0]["bias"]))
        return F.mse_loss(F.linear(out, weights[1]["weight"], weights[1]["bias"]), y)

    got = kept(run, [t for w in weights for t in w.values()])
    assert sum(size for size, _, _ in got) == sum(saved_bytes(layer, batch) for layer in model.layers)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_flops_equal_torchs_counter(model: ModelSpec) -> None:
    layer, batch = model.layer("blocks.0"), Batch(2, 16)
    weights, rope = weights_of(layer, torch.float32), tables(layer, 16, torch.float32)
    x = torch.randn(2, 16, layer.dims["hidden"]).requires_grad_()
    # the counter knows no CPU flash kernel, so the products are counted on the path that makes them one by one
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        BLOCKS[layer.kind](layer, weights, x, rope)
    assert counter.get_total_flops() == forward_flops(layer, batch)
    assert backward_flops(layer, batch) == 2 * forward_flops(layer, batch)


def test_look_ups_and_norms_are_no_products() -> None:
    model = MODELS["gpt"]
    batch = Batch(2, 16)
    free = ("embed.tok", "embed.pos", "head.norm", "loss")
    assert [forward_flops(model.layer(name), batch) for name in free] == [0, 0, 0, 0]
    assert forward_flops(model.layer("head.out"), batch) == 2 * 32 * 48 * 100


def test_transients_grow_with_the_batch_and_name_the_logits() -> None:
    model = MODELS["gpt"]
    loss = model.layer("loss")
    assert transient_bytes(loss, Batch(2, 16), backward=True) == 2 * 4 * 32 * 100
    assert transient_bytes(loss, Batch(2, 16, "bf16"), backward=False) == 6 * 32 * 100
    for layer in model.layers:
        for backward in (False, True):
            assert transient_bytes(layer, Batch(4, 16), backward) == 2 * transient_bytes(layer, Batch(2, 16), backward)
