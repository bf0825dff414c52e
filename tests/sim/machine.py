"""A machine of round numbers."""

from __future__ import annotations

from dataclasses import replace

from shardlab.plan import Figure, Link, Machine


def figure(value: float) -> Figure:
    return Figure(value, "assumed", note="round")


def round_machine(shared: bool = False, memory_bytes: float = 1e12) -> Machine:
    """One PFLOP/s, one TB/s of memory, 100 GB/s inside a node of 4, 10 GB/s between nodes."""
    return Machine(
        name="round",
        title="Round numbers",
        memory_bytes=figure(memory_bytes),
        memory_bytes_per_s=figure(1e12),
        peak_flops_per_s={"fp32": figure(1e15), "bf16": figure(1e15)},
        matmul_fraction=figure(1.0),
        devices_per_node=figure(4),
        intra_node=Link(figure(1e11), figure(1e-6)),
        inter_node=Link(figure(1e10), figure(1e-5)),
        shared=shared,
    )


def slow_links(machine: Machine, factor: float) -> Machine:
    """The same machine with links slower by a factor."""
    link = Link(figure(machine.intra_node.bytes_per_s.value / factor), machine.intra_node.latency_s)
    return replace(machine, intra_node=link)
