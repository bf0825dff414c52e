"""What each call needs of other ranks and posts to them, as it was handed to MPI."""

from collections.abc import Callable

import torch

from shardlab.comm import Mesh
from shardlab.comm.operation import Operation
from shardlab.comm.verdict import Need


def needs_and_bytes(mesh: Mesh) -> dict[str, tuple[list[Need], list[tuple[int, int]]]]:
    """By kind of call: (needs, posted) of its first round."""
    comm, size, me = mesh["dp"], mesh.size, mesh.rank
    splits = list(range(size))  # nothing to index 0
    starts: dict[str, Callable[[], Operation]] = {
        "all_reduce": lambda: comm.start_all_reduce(torch.ones(size + 1)),
        "all_gather": lambda: comm.start_all_gather(torch.ones(2 * size), torch.ones(2)),
        "broadcast": lambda: comm.start_broadcast(torch.ones(4), 1),
        "all_to_all": lambda: comm.start_all_to_all(
            torch.ones(me * size), torch.ones(sum(splits)), [me] * size, splits
        ),
        "barrier": lambda: comm.start_barrier("here"),
        "send": lambda: comm.start_send(torch.ones(2), (me + 1) % size, tag=4),
        "recv": lambda: comm.start_recv(torch.ones(2), (me - 1) % size, tag=4),
    }
    seen, ops = {}, []
    for kind, start in starts.items():
        ops.append(start())  # seen at once: the next start may post the second round of this one
        seen[kind] = (list(ops[-1]._request.needs), list(ops[-1]._request.posted))
    for op in ops:
        op.wait()
    return seen


def test_needs_and_bytes_are_those_handed_to_mpi(mpi_ranks) -> None:
    seen = mpi_ranks(3)(needs_and_bytes)
    key = ("entered", (0, 1, 2), "dp", 2)  # the second group of these ranks: the world has one of its own
    for rank in range(3):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        others = [right, left]
        needs, posted = seen[rank]["all_reduce"]  # 4 elements: blocks of 2, 1, 1
        assert needs == [Need(r, key, 1) for r in others]
        assert posted == [(r, (8, 4, 4)[r]) for r in others]
        needs, posted = seen[rank]["all_gather"]
        assert needs == [Need(r, key, 2) for r in others]
        assert posted == [(r, 8) for r in others]
        needs, posted = seen[rank]["broadcast"]
        assert needs == [Need(r, key, 3) for r in (others if rank == 1 else [1])]
        assert posted == ([(2, 16), (0, 16)] if rank == 1 else [])
        needs, posted = seen[rank]["all_to_all"]
        assert needs == [Need(r, key, 4) for r in others], "also of those that send nothing"
        assert posted == [(r, 4 * r) for r in others if r]
        needs, posted = seen[rank]["barrier"]
        assert ([n.rank for n in needs], posted) == (others, [])
        needs, posted = seen[rank]["send"]
        assert needs == [Need(right, ("received", rank, right, "dp", 2, 4), 1)]
        assert posted == [(right, 8)]
        assert seen[rank]["recv"] == ([Need(left, ("sent", left, rank, "dp", 2, 4), 1)], [])
