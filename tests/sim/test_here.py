"""The host as a device."""

import os

from shardlab.sim import load_machine


def test_this_host_is_measured_and_shared() -> None:
    machine = load_machine("this")
    assert machine.shared and machine.name == "this"
    assert 0 < machine.memory_bytes.value <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_bytes.source == machine.peak_flops_per_s["fp32"].source == "measured"
    assert machine.capacity_bytes(2) == int(machine.memory_bytes.value) // 2
    assert machine.memory_bytes_per_s.value > 0 and machine.peak_flops_per_s["fp32"].value > 0
