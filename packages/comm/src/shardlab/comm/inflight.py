"""Buffers of an asynchronous lockstep call: what a race would spoil by chance is spoiled here for certain.

    start_   output filled with NaN (integers: 0x7F bytes), except a slice of it that is the input; checksums taken
    ...      bytes move between private copies, or straight out of the input, as a seeded coin says
    wait     checksums compared: who wrote to a buffer meanwhile gets BufferInFlightError; then the output is delivered

Real backends forgive most of these mistakes most of the time, and then give wrong numbers once in a long run.
"""

import zlib
from math import nan

import torch
from torch import Tensor

from shardlab.comm.callsite import Site, call_site
from shardlab.comm.check import describe
from shardlab.comm.errors import BufferInFlightError
from shardlab.comm.operation import Loan, flat
from shardlab.comm.values import has_values

__all__ = ["lend_in_flight", "poison"]


def lend_in_flight(out: Tensor | None, inp: Tensor | None, reads_out: bool, late: bool) -> Loan:
    """Lend private copies of a call's buffers and watch the caller's own until they are given back.

    Args:
        out, inp: as in Loan.of.
        reads_out: the content of ``out`` is input too.
        late: read ``inp`` when the bytes move, not now.

    Cost: a copy of each buffer, less those that are read late; two checksums of each.
    """
    if not all(has_values(x) for x in (out, inp) if x is not None):
        return Loan.of(out, inp)
    started = call_site()
    shared = out is not None and inp is not None and _share_storage(out, inp)
    plain = Loan.of(out, inp)
    work_out = plain.out.clone() if reads_out else torch.empty_like(plain.out)
    work_inp = plain.inp if late and not shared else plain.inp.clone()
    if out is not None:
        poison(out)
        if shared and inp is not None and inp.numel() <= out.numel():
            inp.detach().copy_(work_inp.view(inp.shape))
    watched = [(name, x, _checksum(x)) for name, x in (("input", inp), ("output", out)) if x is not None]

    def give_back() -> None:
        for name, x, before in watched:
            if _checksum(x) != before:
                raise BufferInFlightError(_complaint(name, x, started))
        if out is not None:
            out.detach().copy_(work_out.view(out.shape))

    return Loan(work_out, work_inp, plain.payload_bytes, give_back)


def poison(x: Tensor) -> None:
    """Fill ``x`` with values that spoil every result: NaN, or bytes 0x7F where there is no NaN."""
    x = x.detach()
    if x.is_complex():
        x.fill_(complex(nan, nan))
    elif x.is_floating_point():
        x.fill_(nan)
    elif x.dtype is torch.bool:
        x.view(torch.uint8).fill_(0x7F)
    else:
        x.fill_(int.from_bytes(b"\x7f" * x.element_size()))


def _share_storage(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _checksum(x: Tensor) -> int:
    if x.dtype is torch.bool:
        x = x.view(torch.uint8)  # copying a bool makes its byte 0 or 1
    return zlib.crc32(flat(x).view(torch.uint8).numpy().data)


def _complaint(name: str, x: Tensor, started: Site) -> str:
    return (
        f"the {name} ({describe(x)}) of the operation started at {started} was written before its wait at "
        f"{call_site()}; from start_ to wait both buffers belong to comm"
    )
