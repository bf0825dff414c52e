"""The contract of messages, and of several calls under way at once."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from shardlab.comm import Communicator, Mesh
from tests.comm.contract_values import HOW, MOVED, call, check, draw, same, strided, summed


def messages_go_round_a_ring(mesh: Mesh) -> None:
    comm = mesh["dp"]
    if comm.size == 1:
        return
    to, source = (comm.index + 1) % comm.size, (comm.index - 1) % comm.size
    for dtype in MOVED:
        for shape in ((), (0,), (7,), (3, 4)):
            sent, got = strided(draw(comm.index, shape, dtype)), torch.zeros(shape, dtype=dtype)
            pending = [comm.start_send(sent, to), comm.start_recv(got, source)]
            for p in pending:
                p.wait()
            same(got, draw(source, shape, dtype), f"start_ message of {dtype} {shape}")
            got = strided(torch.zeros(shape, dtype=dtype))
            halves = [partial(comm.send, sent, to), partial(comm.recv, got, source)]
            if comm.index == comm.size - 1:  # the ring of blocking sends needs one rank that receives first
                halves.reverse()
            for half in halves:
                half()
            same(got, draw(source, shape, dtype), f"blocking message of {dtype} {shape}")


def messages_pair_by_tag_and_then_in_order(mesh: Mesh) -> None:
    comm = mesh["dp"]
    if comm.size == 1 or comm.index > 1:
        return
    tags = [5, 0, 5, 9]
    if comm.index == 0:
        pending = [comm.start_send(torch.tensor([float(i)]), 1, tag) for i, tag in enumerate(tags)]
    else:
        order = [9, 5, 0, 5]
        got = {i: torch.zeros(1) for i in range(4)}
        pending = [comm.start_recv(got[i], 0, tag) for i, tag in enumerate(order)]
    for p in reversed(pending):
        p.wait()
    if comm.index == 1:
        check([int(got[i]) for i in range(4)] == [3, 0, 1, 2], got)


def one_of_each(comm: Communicator, salt: int) -> list[tuple[Any, Callable[[], None]]]:
    """Start one of each collective; (pending, check of its result)."""
    size, me = comm.size, comm.index
    x, y = draw(me, (13,), torch.float32, salt), draw(me, (3 * size + 1,), torch.bfloat16, salt + 1)
    out, shard = torch.zeros(size * 4), draw(me, (4,), torch.float32, salt + 2)
    part, full = torch.zeros(5), draw(me, (size, 5), torch.float32, salt + 3)
    arrive, leave = torch.zeros(size, 2), draw(me, (size, 2), torch.float32, salt + 4)
    root = salt % size
    b = draw(me, (6,), torch.int32, salt + 5)

    def others(shape: tuple[int, ...], dtype: torch.dtype, at: int) -> list[Tensor]:
        return [draw(i, shape, dtype, salt + at) for i in range(size)]

    return [
        (comm.start_all_reduce(x), lambda: same(x, summed(others((13,), torch.float32, 0)), "sum")),
        (comm.start_all_gather(out, shard), lambda: same(out, torch.cat(others((4,), torch.float32, 2)), "gather")),
        (
            comm.start_all_reduce(y),
            lambda: same(y, summed(others((3 * size + 1,), torch.bfloat16, 1)), "second sum"),
        ),
        (
            comm.start_reduce_scatter(part, full),
            lambda: same(part, summed(others((size, 5), torch.float32, 3))[me], "reduce_scatter"),
        ),
        (
            comm.start_all_to_all(arrive, leave),
            lambda: same(arrive, torch.stack([z[me] for z in others((size, 2), torch.float32, 4)]), "all_to_all"),
        ),
        (comm.start_broadcast(b, root), lambda: same(b, others((6,), torch.int32, 5)[root], "broadcast")),
        (comm.start_barrier(f"b{salt}"), lambda: None),
    ]


def waits_come_in_any_order(mesh: Mesh) -> None:
    """Many under way at once; each rank waits in an order of its own, and polls some of them."""
    comm = mesh["dp"]
    for seed in range(6):
        pending = [pair for salt in range(4) for pair in one_of_each(comm, 10 * salt)]
        order = Random(f"{seed} {comm.index}")
        order.shuffle(pending)
        for p, verify in pending:
            if order.random() < 0.3:
                while not p.done():
                    pass
            p.wait()
            verify()


def blocking_calls_pass_those_under_way(mesh: Mesh) -> None:
    comm = mesh["dp"]
    pending = one_of_each(comm, 3)
    x = draw(comm.index, (8,), torch.float64)
    comm.all_reduce(x)
    same(x, summed([draw(i, (8,), torch.float64) for i in range(comm.size)]), "sum that passed others")
    messages_go_round_a_ring(mesh)
    for p, verify in reversed(pending):
        p.wait()
        p.wait()  # again is harmless
        verify()


def parameters_can_be_moved(mesh: Mesh) -> None:
    """Leaves that require a gradient are written like any other tensor."""
    comm = mesh["dp"]
    p = torch.nn.Parameter(draw(comm.index, (4,), torch.float32))
    for how in HOW:
        call(comm, how, "broadcast", p, 0)
        same(p, draw(0, (4,), torch.float32), "broadcast parameter")
        call(comm, how, "all_gather", torch.zeros(4 * comm.size), p)
        check(p.requires_grad and p.is_leaf and p.grad_fn is None, p)


def a_group_of_one_is_a_copy(mesh: Mesh) -> None:
    comm = mesh["ep"]
    check((comm.size, comm.index, comm.ranks) == (1, 0, (mesh.rank,)), comm)
    x = draw(mesh.rank, (5,), torch.float32)
    want = x.clone()
    for how in HOW:
        out = [torch.zeros(5) for _ in range(3)]
        call(comm, how, "all_reduce", x)
        call(comm, how, "broadcast", x, 0)
        call(comm, how, "all_gather", out[0], x)
        call(comm, how, "reduce_scatter", out[1], x)
        call(comm, how, "all_to_all", out[2], x)
        call(comm, how, "barrier", "alone")
        for got in (x, *out):
            same(got, want, f"{how} call alone")
