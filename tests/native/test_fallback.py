"""The fallback is the reference: the compiled kernels give the same bits, whatever the numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shardlab.native import adamw, cast, fallback, kernels, sum_ranks

pytestmark = pytest.mark.skipif(kernels._core is None, reason="the C++ module is not built")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
HALVES = [torch.bfloat16, torch.float16]


def bits(x: Tensor) -> Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def numbers(seed: int, *shape: int, spread: float = 20.0) -> Tensor:
    """Values over many orders of magnitude, with zeros of both signs, infinities and subnormal halves among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x *= torch.exp2(spread * (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1))
    kind = torch.randint(0, 50, shape, generator=generator)
    for code, value in ((0, 0.0), (1, -0.0), (2, math.inf), (3, 2.0**-24), (4, 65520.0)):
        x[kind == code] = value
    return x


def test_every_16_bit_number_is_widened_alike_and_exactly() -> None:
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in HALVES:
        x = codes.view(dtype)
        compiled, reference = torch.empty(65536), torch.empty(65536)
        cast(x, compiled)
        fallback.cast(x, reference)
        nan = torch.isnan(reference)
        assert torch.equal(torch.isnan(compiled), nan)
        assert torch.equal(bits(compiled)[~nan], bits(reference)[~nan])


@pytest.mark.parametrize("dtype", HALVES)
def test_every_rounding_boundary_is_narrowed_alike(dtype: torch.dtype) -> None:
    # All 16-bit numbers, the midpoints between neighbours, and one fp32 step to either side of each.
    halves = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(torch.float32)
    near = [bits(halves) + offset for offset in (-1, 0, 1)]
    middle = torch.nextafter(halves.to(dtype), torch.tensor(math.inf, dtype=dtype)).to(torch.float64) + halves
    middle = (middle / 2).to(torch.float32)
    near += [bits(middle) + offset for offset in (-1, 0, 1)]
    x = torch.cat(near).view(torch.float32)
    compiled, reference = torch.empty(x.numel(), dtype=dtype), torch.empty(x.numel(), dtype=dtype)
    cast(x, compiled)
    fallback.cast(x, reference)
    assert torch.equal(bits(compiled), bits(reference))
    assert torch.equal(torch.isnan(compiled), torch.isnan(x))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 9), st.integers(0, 3000), st.integers(0, 10**6), st.integers(1, 3))
def test_sums_have_the_same_bits(dtype: torch.dtype, size: int, n: int, seed: int, threads: int) -> None:
    chunks = numbers(seed, size, n).to(dtype)
    compiled, reference = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
    sum_ranks(chunks, compiled, threads=threads)
    fallback.sum_ranks(list(chunks), reference)
    nan = torch.isnan(reference)
    assert torch.equal(torch.isnan(compiled), nan)
    assert torch.equal(bits(compiled)[~nan], bits(reference)[~nan])


def test_a_range_shared_by_threads_is_covered() -> None:
    n = 5 * 32768 + 77
    chunks = numbers(7, 3, n, spread=2.0).float()
    one, three = torch.empty(n), torch.full((n,), math.nan)
    sum_ranks(chunks, one, threads=1)
    sum_ranks(chunks, three, threads=3)
    assert torch.equal(bits(one), bits(three))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([torch.float32, *HALVES]),
    st.sampled_from([None, *HALVES]),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
    st.integers(0, 700),
    st.integers(0, 10**6),
)
def test_adamw_has_the_same_bits(
    grad_dtype: torch.dtype,
    copy_dtype: torch.dtype | None,
    decoupled: bool,
    weight_decay: float,
    n: int,
    seed: int,
) -> None:
    results = []
    for name in ("compiled", "fallback"):
        generator = torch.Generator().manual_seed(seed)
        p, m, v = torch.randn(n, generator=generator), torch.zeros(n), torch.zeros(n)
        copy = None if copy_dtype is None else torch.zeros(n, dtype=copy_dtype)
        for step in (1, 2, 3):
            grad = (torch.randn(n, generator=generator) * 10 ** -(seed % 9)).to(grad_dtype)
            if name == "compiled":
                options = {"weight_decay": weight_decay, "decoupled": decoupled, "copy": copy}
                adamw(p, m, v, grad, step=step, lr=1e-2, **options)
            else:
                scalars = fallback.adamw_numbers(step, 1e-2, (0.9, 0.999), 1e-8, weight_decay, decoupled)
                fallback.adamw(p, m, v, grad, scalars, copy)
        results.append([p, m, v] if copy is None else [p, m, v, copy])
    for compiled, reference in zip(*results, strict=True):
        assert torch.equal(bits(compiled), bits(reference))
