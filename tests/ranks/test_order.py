"""Many operations in flight over several groups, waited for in another order on every rank: values never mix."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shardlab.comm.communicator import Communicator, Pending
from shardlab.comm.mesh import Mesh

Expect = Callable[[], None]


def value(number: int, rank: int, numel: int) -> Tensor:
    """What a rank contributes to an operation: whole numbers, so that sums are exact in any order."""
    return (torch.arange(numel) % 7 + 10 * rank + number % 64).float()


def begin(mesh: Mesh, comm: Communicator, kind: str, number: int, numel: int) -> tuple[Pending, Expect]:
    """Start one operation; returns it and a check of its result."""
    me, ranks = mesh.rank, comm.ranks
    mine = value(number, me, numel)
    total = sum((value(number, rank, numel) for rank in ranks), torch.zeros(numel))

    def equal(got: Tensor, want: Tensor) -> Expect:
        return lambda: torch.testing.assert_close(got, want, rtol=0, atol=0, msg=f"{kind} {number} on {comm}")

    if kind == "all_reduce":
        return comm.start_all_reduce(mine), equal(mine, total)
    if kind == "reduce_scatter":
        full = mine.repeat(comm.size)
        out = torch.empty(numel)
        return comm.start_reduce_scatter(out, full), equal(out, total)
    if kind == "all_gather":
        out = torch.empty(numel * comm.size)
        return comm.start_all_gather(out, mine), equal(out, torch.cat([value(number, r, numel) for r in ranks]))
    if kind == "broadcast":
        source = number % comm.size
        return comm.start_broadcast(mine, source), equal(mine, value(number, ranks[source], numel))
    right, left = (comm.index + 1) % comm.size, (comm.index - 1) % comm.size
    out = torch.empty(numel)
    sending, receiving = comm.start_send(mine, right, tag=number % 3), comm.start_recv(out, left, tag=number % 3)
    sent = mine.clone()

    def check() -> None:
        sending.wait()
        equal(out, value(number, ranks[left], numel))()
        assert torch.equal(mine, sent)

    return receiving, check


def program(mesh: Mesh, seed: int, num_ops: int, most: int) -> int:
    """Start the same operations on every rank, wait in an order that differs between ranks."""
    same, own = random.Random(seed), random.Random(f"{seed} {mesh.rank}")
    groups = [mesh[axes] for axes in ("dp", "tp", ("dp", "tp"))]
    kinds = ["all_reduce"] * 4 + ["reduce_scatter", "all_gather", "broadcast", "message"]
    flying: list[tuple[Pending, Expect]] = []
    for number in range(num_ops):
        comm, kind = same.choice(groups), same.choice(kinds)
        numel = same.choice([0, 1, 5, 1000, most])
        if comm.size > 1:
            flying.append(begin(mesh, comm, kind, number, numel))
        while len(flying) > 40 or (flying and own.random() < 0.25):
            pending, check = flying.pop(own.randrange(len(flying)))
            if pending.done() or own.random() < 0.5:
                pending.wait()
                check()
            else:
                flying.append((pending, check))
                break
    own.shuffle(flying)
    for pending, check in flying:
        pending.wait()
        check()
    return len(flying)


@pytest.mark.parametrize("axes", [{"dp": 2}, {"dp": 3}, {"dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_waits_in_any_order_give_every_operation_its_own_bytes(mpi_ranks, axes: dict[str, int], seed: int) -> None:
    still_flying = mpi_ranks(axes)(program, seed, 150, 20_000)
    assert len(still_flying) == torch.Size(axes.values()).numel()


def reversed_waits(mesh: Mesh, num_ops: int) -> list[float]:
    """Rank 0 waits first to last, the others last to first: mixes tensors if wait posts the second round."""
    comm = mesh["dp"]
    tensors = [torch.full((3,), float(100 * i + mesh.rank)) for i in range(num_ops)]
    pendings = [comm.start_all_reduce(x) for x in tensors]
    for pending in pendings if mesh.rank == 0 else reversed(pendings):
        pending.wait()
    return [x.mean().item() for x in tensors]


@pytest.mark.parametrize("size", [2, 4])
def test_second_rounds_are_first_in_first_out(mpi_ranks, size: int) -> None:
    want = [float(size * 100 * i + sum(range(size))) for i in range(50)]
    assert mpi_ranks(size)(reversed_waits, 50) == [want] * size


def other_group_between(mesh: Mesh) -> tuple[float, float]:
    """A wait on one group posts the second rounds of another: here tp is waited for while dp still flies."""
    x, y = torch.ones(100_000), torch.full((5,), 2.0)
    flying = mesh["dp"].start_all_reduce(x)
    for _ in range(20):
        mesh["tp"].all_reduce(y)
    mesh["tp"].barrier("in between")
    flying.wait()
    return x.unique().item(), y.unique().item()


def test_other_groups_between_start_and_wait(mpi_ranks) -> None:
    assert mpi_ranks({"dp": 2, "tp": 2})(other_group_between) == [(2.0, 2.0 * 2**20)] * 4


def leave_the_second_round_to_the_peer(mesh: Mesh) -> float:
    """Rank 1 starts, then polls ``done`` only; rank 0 waits at once."""
    x = torch.full((1000,), float(mesh.rank + 1))
    pending = mesh["dp"].start_all_reduce(x)
    if mesh.rank == 1:
        polls = 0
        while not pending.done():
            polls += 1
            assert polls < 10**8
    pending.wait()
    return x.unique().item()


def test_done_makes_progress(mpi_ranks) -> None:
    assert mpi_ranks(2)(leave_the_second_round_to_the_peer) == [3.0, 3.0]
