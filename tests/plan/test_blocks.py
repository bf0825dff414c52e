"""What autograd keeps of the reference modules, to the byte; flops as torch counts them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardlab.engine.build import build
from shardlab.plan import Batch, ModelSpec, gpt, llama, mlp
from shardlab.plan.blocks import (
    backward_flops,
    checkpoint_tensors,
    forward_flops,
    saved_bytes,
    saved_tensors,
    transient_bytes,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
SIZES = {"layers": 2, "hidden": 48, "heads": 4, "vocab": 100, "positions": 32}
MODELS = {
    "gpt": gpt(**SIZES, ffn=144),
    "gpt-no-bias": gpt(**SIZES, bias=False, tied=False),
    "llama": llama(**SIZES, ffn=80),
    "llama-grouped": llama(**SIZES, kv_heads=2, head_dim=16, ffn=80, qkv_bias=True, tied=True),
    "mlp": mlp(widths=[5, 7, 3]),
}
CASES = [(name, dtype) for name in MODELS for dtype in DTYPES if name == "mlp" or dtype != "fp64"]


def made(model: ModelSpec, dtype: str, recompute: str = "none") -> tuple[nn.Module, tuple[Tensor, Tensor], Batch]:
    """The reference module in a dtype, one micro-batch for it, and that micro-batch as a value."""
    module = build(model, recompute)
    for param in module.parameters():
        param.data = param.data.to(DTYPES[dtype])
    if model.family == "mlp":
        return (
            module,
            (torch.randn(3, 5, dtype=DTYPES[dtype]), torch.randn(3, 3, dtype=DTYPES[dtype])),
            Batch(3, 1, dtype),
        )
    return module, (torch.randint(0, 100, (3, 20)), torch.randint(0, 100, (3, 20))), Batch(3, 20, dtype)


def kept_bytes(module: nn.Module, run: Callable[[], Tensor]) -> list[int]:
    """Sizes of the storages that autograd keeps, without parameters and buffers, ascending."""
    skip = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    assert result.requires_grad
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}
    return sorted(size for at, size in storages.items() if at not in skip)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_keeps_what_the_lists_say(name: str, dtype: str) -> None:
    model = MODELS[name]
    module, inputs, batch = made(model, dtype)
    listed = sorted(tensor.nbytes for layer in model.layers for tensor in saved_tensors(layer, batch))
    assert kept_bytes(module, lambda: module(*inputs)) == listed


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_recomputed_block_keeps_its_input(name: str) -> None:
    model = MODELS[name]
    module, inputs, batch = made(model, "fp32", "full")
    outside = [layer for layer in model.layers if not layer.name.startswith("blocks.")]
    listed = [tensor for layer in outside for tensor in saved_tensors(layer, batch)]
    for block in ("blocks.0", "blocks.1"):
        listed += checkpoint_tensors(model.layer(block), batch)
    assert kept_bytes(module, lambda: module(*inputs)) == sorted(tensor.nbytes for tensor in listed)


@pytest.mark.parametrize("name", MODELS)
def test_flops_equal_torchs_counter(name: str) -> None:
    model = MODELS[name]
    module, inputs, batch = made(model, "fp32")
    # the counter knows no CPU flash kernel, so the products are counted on the path that makes them one by one
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    assert counter.get_total_flops() == sum(forward_flops(layer, batch) for layer in model.layers)
    assert all(backward_flops(layer, batch) == 2 * forward_flops(layer, batch) for layer in model.layers)


def test_look_ups_and_norms_are_no_products() -> None:
    model, batch = MODELS["gpt"], Batch(2, 16)
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
            once, twice = (transient_bytes(layer, Batch(rows, 16), backward) for rows in (2, 4))
            assert twice == 2 * once


def test_saved_bytes_is_the_sum() -> None:
    layer, batch = MODELS["llama"].layer("blocks.0"), Batch(2, 16, "bf16")
    assert saved_bytes(layer, batch) == sum(tensor.nbytes for tensor in saved_tensors(layer, batch)) > 0
