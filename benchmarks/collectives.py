"""Collectives of shardlab.comm against plain blocking MPI calls on the same memory, in one interleaved run.

    mpirun -n 4 python benchmarks/collectives.py

The limit of each line is MPI's own blocking call over the same bytes; for reduce_scatter and all_reduce that is the
all-to-all, and all-to-all plus all-gather, which a rank-ordered sum needs at least (MPI's own reductions add in an
order that depends on the number of ranks). Printed is the ratio of times, shardlab / MPI, as the median of interleaved
pairs, with the bounds between which the median lies with 90 % confidence. Below 1: shardlab waits more cheaply than
MPI, as it does when ranks outnumber cores.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch

from shardlab.comm import Communicator, init

Call = Callable[[], None]


def bounds(samples: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median with 90 % confidence (sign test, normal approximation)."""
    ordered, n = sorted(samples), len(samples)
    reach = 1.645 * n**0.5 / 2
    low, high = int(max(0, n / 2 - reach)), int(min(n - 1, n / 2 + reach))
    return ordered[low], ordered[high]


def seconds(call: Call, repeats: int) -> float:
    """Mean time of some calls in a row."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def cases(comm: Communicator, nbytes: int) -> dict[str, tuple[Call, Call]]:
    """Each collective over ``nbytes`` of fp32 in its larger buffer: (shardlab, MPI)."""
    from mpi4py import MPI

    world, size = MPI.COMM_WORLD, comm.size
    numel = nbytes // 4 // size * size
    whole, other = torch.ones(numel), torch.ones(numel)
    part = whole[comm.index * (numel // size) :][: numel // size]

    def gather() -> None:
        world.Allgather(MPI.IN_PLACE, [whole.numpy(), numel // size, MPI.FLOAT])

    def exchange() -> None:
        world.Alltoall([other.numpy(), MPI.FLOAT], [whole.numpy(), MPI.FLOAT])

    def exchange_and_gather() -> None:
        exchange()
        gather()

    return {
        "barrier": (lambda: comm.barrier("b"), world.Barrier),
        "all_gather": (lambda: comm.all_gather(whole, part), gather),
        "all_to_all": (lambda: comm.all_to_all(whole, other), exchange),
        "reduce_scatter": (lambda: comm.reduce_scatter(part, other), exchange),
        "all_reduce": (lambda: comm.all_reduce(whole.zero_()), exchange_and_gather),
        "broadcast": (lambda: comm.broadcast(whole, 0), lambda: world.Bcast([whole.numpy(), MPI.FLOAT], 0)),
    }


def main() -> None:
    """Print one line per collective and size, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="*", default=[4096, 64 * 2**20], help="sizes of the larger buffer")
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs, at least 7")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    mesh = init()
    comm = mesh["dp"]
    torch.set_num_threads(1)
    for nbytes in options.bytes:
        repeats = max(1, min(100, 2**22 // nbytes))
        for name, (ours, theirs) in cases(comm, nbytes).items():
            if name == "barrier" and nbytes != options.bytes[0]:
                continue
            pairs = []
            for warm_up in (True, *[False] * options.pairs):
                comm.barrier("pair")
                pair = seconds(ours, repeats), seconds(theirs, repeats)
                pairs += [] if warm_up else [pair]
            ratios = [mine / limit for mine, limit in pairs]
            low, high = bounds(ratios)
            row = {
                "collective": name,
                "bytes": nbytes,
                "ranks": mesh.size,
                "shardlab_us": median(mine for mine, _ in pairs) * 1e6,
                "mpi_us": median(limit for _, limit in pairs) * 1e6,
                "ratio": median(ratios),
                "ratio_low": low,
                "ratio_high": high,
            }
            if mesh.rank == 0:
                print(json.dumps(row) if options.json else text(row), flush=True)


def text(row: dict[str, object]) -> str:
    """One line for people."""
    return (
        "{collective:15}{bytes:>10} bytes {ranks} ranks  shardlab {shardlab_us:9.1f} us  MPI {mpi_us:9.1f} us  "
        "ratio {ratio:6.2f} ({ratio_low:.2f} to {ratio_high:.2f})"
    ).format(**row)


if __name__ == "__main__":
    main()
