"""Checks of arguments, before anything is posted. Each ValueError says what was given and what would be right."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardlab.comm.communicator import ReduceOp

if TYPE_CHECKING:
    from shardlab.comm.base import BaseCommunicator

__all__ = ["describe", "movable", "peer", "reducible", "sizes", "splits", "writable"]


def describe(x: Tensor) -> str:
    """Number of elements and dtype, the way messages show a tensor."""
    return f"{x.numel()} {str(x.dtype).removeprefix('torch.')}"


def movable(comm: "BaseCommunicator", kind: str, x: Tensor, name: str = "x") -> None:
    """``x`` is a dense tensor on the device of the backend."""
    if x.device.type != comm.device_type:
        raise ValueError(f"{kind} on {comm}: {name} is on {x.device}, this backend moves {comm.device_type} tensors")
    if x.layout is not torch.strided:
        raise ValueError(f"{kind} on {comm}: {name} is {x.layout}; only dense tensors are moved, call to_dense() first")


def writable(comm: "BaseCommunicator", kind: str, x: Tensor, name: str = "x") -> None:
    """``x`` can be moved, and each of its elements has memory of its own."""
    movable(comm, kind, x, name)
    if not x.is_contiguous() and any(step == 0 and n > 1 for step, n in zip(x.stride(), x.shape, strict=True)):
        raise ValueError(
            f"{kind} on {comm}: {name} is expanded, several of its elements share memory; pass {name}.contiguous()"
        )


def reducible(comm: "BaseCommunicator", kind: str, x: Tensor, op: ReduceOp) -> None:
    """``x`` can be combined by ``op``."""
    movable(comm, kind, x)
    if not isinstance(op, ReduceOp):
        raise ValueError(f"{kind} on {comm}: op is {op!r}, expected one of {', '.join(map(str, ReduceOp))}")
    if x.dtype.is_complex:
        raise ValueError(f"{kind} on {comm}: {x.dtype} is only moved; reduce torch.view_as_real(x)")
    if x.dtype is torch.bool:
        raise ValueError(f"{kind} on {comm}: bool is only moved; reduce x.int()")


def sizes(comm: "BaseCommunicator", kind: str, whole: tuple[str, Tensor], part: tuple[str, Tensor]) -> None:
    """The whole holds exactly one part of each rank, in one dtype."""
    (whole_name, w), (part_name, p) = whole, part
    gathers = kind == "all_gather"
    (writable if gathers else movable)(comm, kind, w, whole_name)
    (movable if gathers else writable)(comm, kind, p, part_name)
    if w.dtype != p.dtype:
        raise ValueError(f"{kind} on {comm}: {whole_name} is {w.dtype}, {part_name} {p.dtype}; both must be the same")
    if w.numel() != p.numel() * comm.size:
        raise ValueError(
            f"{kind} on {comm}: {whole_name} has {w.numel()} elements, {part_name} has {p.numel()}; "
            f"{whole_name} must have {comm.size} x {p.numel()} = {comm.size * p.numel()}"
        )


def peer(comm: "BaseCommunicator", kind: str, name: str, index: int, other: bool = True) -> None:
    """``index`` is a position in the group and, where ``other``, not this rank's own."""
    if not 0 <= index < comm.size:
        valid = f"0..{comm.size - 1} (an index, not a global rank)"
        raise ValueError(f"{kind} on {comm}: {name} is {index}, valid are {valid}")
    if other and index == comm.index:
        raise ValueError(f"{kind} on {comm}: {name} is {index}, this rank itself; copy the tensor instead")


def splits(
    comm: "BaseCommunicator", out: Tensor, inp: Tensor, out_splits: list[int] | None, in_splits: list[int] | None
) -> tuple[list[int], list[int]]:
    """Numels of the blocks of ``out`` and ``inp``, after checking that they add up."""
    writable(comm, "all_to_all", out, "out")
    movable(comm, "all_to_all", inp, "inp")
    if out.dtype != inp.dtype or out.shape[1:] != inp.shape[1:] or not out.dim() or not inp.dim():
        raise ValueError(
            f"all_to_all on {comm}: out is {out.dtype} {tuple(out.shape)}, inp is {inp.dtype} {tuple(inp.shape)}; "
            "both need the same dtype and the same shape behind dim 0"
        )
    return _numels(comm, "out", out, out_splits), _numels(comm, "in", inp, in_splits)


def _numels(comm: "BaseCommunicator", side: str, x: Tensor, given: list[int] | None) -> list[int]:
    rows, size = x.shape[0], comm.size
    if given is None:
        if rows % size:
            raise ValueError(
                f"all_to_all on {comm}: {rows} rows do not divide into {size} equal blocks; give {side}_splits"
            )
        given = [rows // size] * size
    if len(given) != size or sum(given) != rows or min(given, default=0) < 0:
        raise ValueError(
            f"all_to_all on {comm}: {side}_splits {given} must be {size} row counts that add up to the {rows} rows"
        )
    row_numel = x[:1].numel() if rows else 0
    return [n * row_numel for n in given]
