"""combine and split_evenly against plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.comm.communicator import MAX, MIN, SUM, ReduceOp
from shardlab.comm.reduction import combine, split_evenly

HALVES = (torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def chunks_of(size: int, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(size)
    if dtype.is_floating_point:
        return [torch.randn(numel, generator=rng).to(dtype) for _ in range(size)]
    return [torch.randint(-100, 100, (numel,), generator=rng).to(dtype) for _ in range(size)]


@pytest.mark.parametrize("numel", [0, 1, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES, *INTEGERS])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_sum_is_the_loop_in_order_rounded_once(size: int, dtype: torch.dtype, numel: int) -> None:
    chunks = chunks_of(size, numel, dtype)
    want = chunks[0].float() if dtype in HALVES else chunks[0].clone()
    for chunk in chunks[1:]:
        want = want + (chunk.float() if dtype in HALVES else chunk)
    out = torch.empty(numel, dtype=dtype)
    combine(chunks, out, SUM)
    assert torch.equal(out, want.to(dtype))


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("numel", [9, 5000])
def test_the_output_may_be_one_of_the_chunks(where: int, dtype: torch.dtype, numel: int) -> None:
    chunks = chunks_of(3, numel, dtype)
    want = torch.empty(numel, dtype=dtype)
    combine([c.clone() for c in chunks], want, SUM)
    combine(chunks, chunks[where], SUM)
    assert torch.equal(chunks[where], want)


def test_rounding_once_and_the_order_show_in_the_bits() -> None:
    """The test above can tell: one ulp lost by rounding after each addition, and cancellation by another order."""
    tiny = torch.tensor([2.0**-9], dtype=torch.bfloat16)
    out = torch.empty(1, dtype=torch.bfloat16)
    combine([torch.ones(1, dtype=torch.bfloat16), *[tiny] * 4], out, SUM)
    assert out.item() == 1 + 2.0**-7
    big, out = torch.tensor([1e8]), torch.empty(1)
    combine([big, -big, torch.ones(1)], out, SUM)
    assert out.item() == 1
    combine([big, torch.ones(1), -big], out, SUM)
    assert out.item() == 0


@pytest.mark.parametrize(("op", "want"), [(MAX, [3.0, 5.0]), (MIN, [-1.0, 2.0])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES, torch.int8, torch.int64])
def test_max_and_min(op: ReduceOp, want: list[float], dtype: torch.dtype) -> None:
    rows = torch.tensor([[1, 5], [3, 2], [-1, 4]]).to(dtype)
    out = torch.empty(2, dtype=dtype)
    combine(list(rows), out, op)
    assert out.tolist() == want


@pytest.mark.parametrize("op", [MAX, MIN, SUM])
def test_not_a_number_is_kept(op: ReduceOp) -> None:
    out = torch.empty(1)
    combine([torch.ones(1), torch.tensor([float("nan")]), torch.ones(1)], out, op)
    assert out.isnan().all()


def test_integers_wrap() -> None:
    out = torch.empty(1, dtype=torch.int8)
    combine([torch.tensor([100], dtype=torch.int8)] * 2, out, SUM)
    assert out.item() == -56


def test_no_graph_is_recorded() -> None:
    out = torch.empty(2)
    combine([torch.ones(2, requires_grad=True), torch.ones(2)], out, SUM)
    assert not out.requires_grad and out.tolist() == [2, 2]


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_pieces_cover_and_differ_by_at_most_one(numel: int, parts: int) -> None:
    sizes = split_evenly(numel, parts)
    assert len(sizes) == parts and sum(sizes) == numel
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
