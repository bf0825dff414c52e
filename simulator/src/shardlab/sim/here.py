"""The machine one sits at, its CPUs taken as the device: measured in a fraction of a second, and roughly.

Ranks of one host share its memory, its cores and its memory bandwidth. Nothing here says what a GPU in it could do.
"""

from __future__ import annotations

import os
import platform
import time

import numpy as np

from shardlab.plan import Figure, Link, Machine

_SIDE = 768
_COPY_BYTES = 2**25
_REPEATS = 5


def _best_s(work: np.ndarray, other: np.ndarray, out: np.ndarray, multiply: bool) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        if multiply:
            np.matmul(work, other, out=out)
        else:
            np.copyto(out, work)
        best = min(best, time.perf_counter() - start)
    return best


def matmul_flops_per_s() -> float:
    """Measure the rate of an fp32 matrix product over all cores, best of a few."""
    a, b, out = (np.ones((_SIDE, _SIDE), dtype=np.float32) for _ in range(3))
    return float(2 * _SIDE**3 / _best_s(a, b, out, multiply=True))


def copy_bytes_per_s() -> float:
    """Measure memory bandwidth by a copy, bytes read plus bytes written, best of a few."""
    source, out = (np.ones(_COPY_BYTES, dtype=np.uint8) for _ in range(2))
    return 2 * _COPY_BYTES / _best_s(source, source, out, multiply=False)


def memory_bytes() -> int:
    """Return the physical memory of the host, or the limit of the container it runs in if that is lower."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(host, int(file.read()))
    except (OSError, ValueError):  # no such limit: not in a container, or "max"
        return host


def this_machine() -> Machine:
    """Measure this host and describe it as a machine whose ranks share it."""
    rate, copy = matmul_flops_per_s(), copy_bytes_per_s()
    measured = Figure(rate, "measured", note=f"fp32 product of {_SIDE} x {_SIDE} on all cores of this host, just now")
    half = Figure(rate, "assumed", note="taken equal to fp32; without bf16 units it is slower")
    return Machine(
        name="this",
        title=f"this host, {os.cpu_count()} CPUs ({platform.machine()})",
        memory_bytes=Figure(memory_bytes(), "measured", note="physical memory, or the limit of the container"),
        memory_bytes_per_s=Figure(copy, "measured", note="a copy of 32 MiB, reads and writes, just now"),
        peak_flops_per_s={"fp32": measured, "bf16": half, "fp16": half},
        matmul_fraction=Figure(1.0, "measured", note="the rate was measured, not printed"),
        devices_per_node=Figure(2**20, "assumed", note="all ranks on this host"),
        intra_node=Link(
            Figure(copy / 4, "assumed", note="a message through shared memory reads and writes twice"),
            Figure(5e-5, "assumed", note="round number for a message between processes"),
        ),
        inter_node=Link(
            Figure(1.25e9, "assumed", note="10 Gb/s Ethernet"),
            Figure(1e-4, "assumed", note="round number for Ethernet"),
        ),
        shared=True,
    )
