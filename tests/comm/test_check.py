"""Argument checks: each says what was given and what would be right. (The contract holds all backends to them.)"""

from collections.abc import Callable

import pytest
import torch

from shardlab.comm import MAX, SUM, dry_mesh
from shardlab.comm.base import BaseCommunicator
from shardlab.comm.check import describe, movable, peer, reducible, sizes, splits, writable


@pytest.fixture
def comm() -> BaseCommunicator:
    found = dry_mesh({"dp": 3}, 1)["dp"]
    assert isinstance(found, BaseCommunicator)
    return found


def test_describe() -> None:
    assert describe(torch.zeros(2, 3, dtype=torch.bfloat16)) == "6 bfloat16"


@pytest.mark.parametrize(
    ("attempt", "text"),
    [
        (lambda c: movable(c, "send", torch.zeros(2, device="meta")), "x is on meta, this backend moves cpu tensors"),
        (lambda c: movable(c, "send", torch.eye(2).to_sparse()), "x is torch.sparse_coo; only dense tensors are moved"),
        (lambda c: writable(c, "recv", torch.zeros(1, 2).expand(3, 2)), "x is expanded"),
        (lambda c: reducible(c, "all_reduce", torch.zeros(1), max), "expected one of ReduceOp.SUM, ReduceOp.MAX"),
        (
            lambda c: reducible(c, "all_reduce", torch.zeros(1, dtype=torch.bool), SUM),
            "bool is only moved; reduce x.int()",
        ),
        (
            lambda c: reducible(c, "all_reduce", torch.zeros(1, dtype=torch.complex64), SUM),
            "reduce torch.view_as_real(x)",
        ),
        (
            lambda c: sizes(c, "all_gather", ("out", torch.zeros(7)), ("shard", torch.zeros(2))),
            "out must have 3 x 2 = 6",
        ),
        (
            lambda c: sizes(c, "all_gather", ("out", torch.zeros(6).half()), ("shard", torch.zeros(2))),
            "must be the same",
        ),
        (lambda c: peer(c, "send", "dst_index", 3), "dst_index is 3, valid are 0..2 (an index, not a global rank)"),
        (lambda c: peer(c, "send", "dst_index", -1), "dst_index is -1"),
        (lambda c: peer(c, "send", "dst_index", 1), "this rank itself; copy the tensor instead"),
        (lambda c: splits(c, torch.zeros(4), torch.zeros(4), None, None), "4 rows do not divide into 3 equal blocks"),
        (
            lambda c: splits(c, torch.zeros(4), torch.zeros(4), [4, 0], [1, 1, 2]),
            "out_splits [4, 0] must be 3 row counts",
        ),
        (lambda c: splits(c, torch.zeros(4), torch.zeros(4), [5, -1, 0], [1, 1, 2]), "out_splits [5, -1, 0]"),
        (lambda c: splits(c, torch.zeros(4), torch.zeros(4), [1, 1, 2], [1, 1, 1]), "add up to the 4 rows"),
        (lambda c: splits(c, torch.zeros(3, 2), torch.zeros(3, 4), None, None), "the same shape behind dim 0"),
        (lambda c: splits(c, torch.zeros(()), torch.zeros(()), None, None), "the same shape behind dim 0"),
        (lambda c: splits(c, torch.zeros(3), torch.zeros(3).int(), None, None), "both need the same dtype"),
    ],
)
def test_wrong_arguments(comm: BaseCommunicator, attempt: Callable[[BaseCommunicator], object], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        attempt(comm)
    assert text in str(caught.value) and "on group dp of ranks [0, 1, 2]: " in str(caught.value)


def test_right_arguments_pass(comm: BaseCommunicator) -> None:
    read_only = torch.zeros(1).expand(4)
    movable(comm, "send", read_only)  # may be read
    with pytest.raises(ValueError):
        writable(comm, "recv", read_only)
    writable(comm, "recv", torch.zeros(4, 1).expand(4, 1).t())
    reducible(comm, "all_reduce", torch.zeros(2, dtype=torch.uint8), MAX)
    sizes(comm, "reduce_scatter", ("full", torch.zeros(3, 2)), ("out", torch.zeros(2, 1)))
    sizes(comm, "all_gather", ("out", torch.zeros(0)), ("shard", torch.zeros(0)))
    peer(comm, "broadcast", "src_index", comm.index, other=False)
    with pytest.raises(ValueError):
        peer(comm, "send", "dst_index", comm.index)


def test_splits_are_turned_into_numels(comm: BaseCommunicator) -> None:
    x = torch.zeros(6, 5)
    assert splits(comm, x, x, None, [1, 0, 5]) == ([10, 10, 10], [5, 0, 25])
    assert splits(comm, torch.zeros(0, 5), torch.zeros(0, 5), None, None) == ([0] * 3, [0] * 3)
