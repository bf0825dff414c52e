"""The public kernels, compiled and fallback: right numbers, and errors that name the argument."""

import pytest
import torch
from torch import Tensor

from shardlab.native import adamw, cast, sum_ranks

pytestmark = pytest.mark.usefixtures("implementation")

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sum_is_in_rank_order_and_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    chunks = torch.randn(5, 333, generator=generator, dtype=torch.float64).to(dtype)
    wide = chunks.to(torch.float64 if dtype is torch.float64 else torch.float32)
    expected = (((wide[0] + wide[1]) + wide[2]) + wide[3]) + wide[4]
    out = torch.empty(333, dtype=dtype)
    sum_ranks(chunks, out)
    assert torch.equal(out, expected.to(dtype))


def test_the_order_of_ranks_is_seen_in_the_result() -> None:
    out = torch.empty(1)
    sum_ranks(torch.tensor([[1e8], [1.0], [-1e8]]), out)
    assert out.item() == 0.0
    sum_ranks(torch.tensor([[1e8], [-1e8], [1.0]]), out)
    assert out.item() == 1.0


def test_a_bf16_sum_is_not_rounded_between_ranks() -> None:
    chunks = torch.full((256, 3), 1.0, dtype=torch.bfloat16)
    chunks[0] = 256.0  # bf16 has 8 bits: 256 + 1 rounds back to 256
    out = torch.empty(3, dtype=torch.bfloat16)
    sum_ranks(chunks, out)
    assert out.tolist() == [512.0, 512.0, 512.0]  # 511 rounded once


def test_minus_zero_survives() -> None:
    out = torch.empty(1)
    sum_ranks(torch.tensor([[-0.0], [-0.0]]), out)
    assert torch.signbit(out).item()


def test_out_may_be_a_chunk_and_chunks_may_lie_anywhere() -> None:
    chunks = [torch.full((7,), float(rank + 1)) for rank in range(3)]
    sum_ranks(chunks, chunks[1])
    assert chunks[1].tolist() == [6.0] * 7
    assert chunks[0].tolist() == [1.0] * 7


def test_nothing_to_do() -> None:
    empty = torch.empty(0)
    sum_ranks(torch.empty(3, 0), empty)
    cast(empty, torch.empty(0, dtype=torch.bfloat16))
    adamw(empty, torch.empty(0), torch.empty(0), torch.empty(0), step=1, lr=0.1)
    assert empty.numel() == 0


def test_cast_both_ways_keeps_nan_and_overflows_to_infinity() -> None:
    x = torch.tensor([1.0, float("nan"), 1e30, -1e30, 2.0**-24, 2.0**-26, 65519.9, 65520.0])
    half, back = torch.empty(8, dtype=torch.float16), torch.empty(8)
    cast(x, half)
    cast(half, back)
    inf = float("inf")
    assert torch.isnan(back[1])
    assert back[[0, 2, 3, 4, 5, 6, 7]].tolist() == [1.0, inf, -inf, 2.0**-24, 0.0, 65504.0, inf]
    ties = torch.tensor([1.00390625, 1.01171875])  # 1 + 1/256 and 1 + 3/256: halfway between two bf16 numbers
    rounded = torch.empty(2, dtype=torch.bfloat16)
    cast(ties, rounded)
    assert rounded.tolist() == [1.0, 1.015625]


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decoupled", [True, False])
def test_adamw_follows_torch(grad_dtype: torch.dtype, decoupled: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    p = torch.randn(40, 25, generator=generator)
    reference = torch.nn.Parameter(p.clone())
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.1}
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)([reference], foreach=True, **options)
    m, v, copy = torch.zeros_like(p), torch.zeros_like(p), torch.empty_like(p, dtype=torch.bfloat16)
    for step in range(1, 21):
        grad = torch.randn(40, 25, generator=generator).to(grad_dtype)
        reference.grad = grad.float()
        optimizer.step()
        adamw(p, m, v, grad, step=step, decoupled=decoupled, copy=copy, **options)
    state = optimizer.state[reference]
    # torch's lerp and addcmul are fused multiply-adds on some CPUs: a rounding a step, over 20 steps.
    torch.testing.assert_close(m, state["exp_avg"], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(v, state["exp_avg_sq"], rtol=1e-6, atol=0)
    torch.testing.assert_close(p, reference.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(copy, p.to(torch.bfloat16))


def test_writes_count_for_autograd() -> None:
    w = torch.ones(4, requires_grad=True)
    y = (w * w).sum()
    with torch.no_grad():
        sum_ranks([torch.ones(4)], w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def flat(n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(n, dtype=dtype)


WRONG = {
    "chunks is empty": lambda: sum_ranks([], flat()),
    r"chunks\[1\] has shape \(5,\); it must be \(4,\)": lambda: sum_ranks([flat(), flat(5)], flat()),
    r"chunks\[0\] has dtype float64; it must be float32": lambda: sum_ranks([flat(4, torch.float64)], flat()),
    r"out has dtype int64; it must be float32 or": lambda: sum_ranks([flat(4, torch.int64)], flat(4, torch.int64)),
    r"out has shape \(2, 2\); it must be 1-D": lambda: sum_ranks([flat()], flat().view(2, 2)),
    r"chunks\[0\] is not contiguous .* pass chunks\[0\]\.contiguous": lambda: sum_ranks([flat(8)[::2]], flat()),
    r"out and chunks\[0\] overlap": lambda: (lambda x: sum_ranks([x[:4]], x[2:6]))(flat(8)),
    "out is on meta": lambda: sum_ranks([flat()], torch.empty(4, device="meta")),
    "out has dtype float32; it must be bfloat16 or float16": lambda: cast(flat(), flat()),
    "out has dtype float16; it must be float32": lambda: cast(flat(4, torch.bfloat16), flat(4, torch.float16)),
    "p has dtype bfloat16": lambda: adamw(flat(4, torch.bfloat16), flat(), flat(), flat(), step=1, lr=0.1),
    r"v has shape \(5,\)": lambda: adamw(flat(), flat(), flat(5), flat(), step=1, lr=0.1),
    "grad has dtype float64": lambda: adamw(flat(), flat(), flat(), flat(4, torch.float64), step=1, lr=0.1),
    "copy has dtype float32": lambda: adamw(flat(), flat(), flat(), flat(), step=1, lr=0.1, copy=flat()),
    "step is 0; steps are counted from 1": lambda: adamw(flat(), flat(), flat(), flat(), step=0, lr=0.1),
    r"betas is \(0.9, 1.0\)": lambda: adamw(flat(), flat(), flat(), flat(), step=1, lr=0.1, betas=(0.9, 1.0)),
    "m and p overlap": lambda: (lambda x: adamw(x, x, flat(), flat(), step=1, lr=0.1))(flat()),
}


@pytest.mark.parametrize("message", list(WRONG))
def test_a_wrong_argument_is_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


def test_something_else_than_a_tensor_is_named() -> None:
    with pytest.raises(TypeError, match=r"x is a list; it must be a torch\.Tensor"):
        cast([1.0], torch.empty(1, dtype=torch.bfloat16))  # type: ignore[arg-type]
