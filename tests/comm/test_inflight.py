"""Loans of asynchronous lockstep calls: poison and checksums, without ranks."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm.errors import BufferInFlightError
from shardlab.comm.inflight import lend_in_flight, poison

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
OTHERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_become_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 4, dtype=dtype).t()
    poison(x)
    assert x.isnan().all()


@pytest.mark.parametrize("dtype", OTHERS)
def test_other_types_become_bytes_of_7f(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 4, dtype=dtype).t()
    poison(x)
    for element in x.view(torch.uint8) if dtype is torch.bool else x:
        assert set(element.contiguous().view(torch.uint8).tolist()) == {0x7F}


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_the_result_is_delivered_when_given_back(dtype: torch.dtype) -> None:
    out, inp = torch.zeros(2, 3, dtype=dtype).t(), torch.ones(6, dtype=dtype)
    loan = lend_in_flight(out, inp, reads_out=False, late=False)
    loan.out.copy_(loan.inp)
    loan.give_back()
    assert torch.equal(out, torch.ones(3, 2, dtype=dtype))


def test_the_content_of_a_sum_is_taken_before_it_is_poisoned() -> None:
    x = torch.arange(3.0)
    loan = lend_in_flight(x, None, reads_out=True, late=False)
    assert loan.out.tolist() == [0, 1, 2] and x.isnan().all()


def test_late_reads_the_callers_memory() -> None:
    inp = torch.zeros(3)
    late, early = (lend_in_flight(None, inp, reads_out=False, late=late) for late in (True, False))
    inp.fill_(7)
    assert late.inp.tolist() == [7, 7, 7] and early.inp.tolist() == [0, 0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_an_output_inside_the_input_is_read_before_it_is_poisoned(late: bool) -> None:
    full = torch.arange(6.0)
    loan = lend_in_flight(full[2:4], full, reads_out=False, late=late)
    assert loan.inp.tolist() == [0, 1, 2, 3, 4, 5]
    assert full[2:4].isnan().all() and full[4:].tolist() == [4, 5]


@pytest.mark.parametrize("late", [False, True])
def test_an_input_inside_the_output_is_spared(late: bool) -> None:
    out = torch.arange(6.0)
    loan = lend_in_flight(out, out[2:4], reads_out=False, late=late)
    assert out[2:4].tolist() == [2, 3] and loan.inp.tolist() == [2, 3] and int(out.isnan().sum()) == 4


@pytest.mark.parametrize(("which", "word"), [(0, "output"), (1, "input")])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_a_changed_bit_is_an_error(which: int, word: str, dtype: torch.dtype) -> None:
    buffers = [torch.zeros(10, dtype=dtype)[::2], torch.zeros(10, dtype=dtype)[::2]]
    loan = lend_in_flight(buffers[0], buffers[1], reads_out=False, late=True)
    last = buffers[which][4:].view(torch.uint8) if dtype is torch.bool else buffers[which][4:].unsqueeze(-1)
    last.view(torch.uint8)[..., -1] ^= 1
    with pytest.raises(BufferInFlightError, match=f"the {word} "):
        loan.give_back()


def test_fake_tensors_are_lent_as_they_are() -> None:
    with FakeTensorMode():
        out, inp = torch.zeros(6), torch.zeros(3)
        loan = lend_in_flight(out, inp, reads_out=False, late=False)
        loan.give_back()
        assert loan.out.untyped_storage()._cdata == out.untyped_storage()._cdata
