"""The allocator's events say what was alive at once."""

import torch

from shardlab.engine.allocator import allocator_peak, resident_bytes


def test_peak_counts_what_was_alive_at_once() -> None:
    with allocator_peak() as found:
        first = torch.empty(1 << 20, dtype=torch.uint8)
        second = torch.empty(1 << 21, dtype=torch.uint8)
        del first
        third = torch.empty(1 << 18, dtype=torch.uint8)
        del second, third
    assert 3 << 20 <= found.peak_bytes < (3 << 20) + 4096
    assert abs(found.kept_bytes) < 4096


def test_kept_bytes_are_those_alive_at_the_end() -> None:
    with allocator_peak() as found:
        kept = torch.empty(1 << 20, dtype=torch.uint8)
    assert found.kept_bytes == kept.numel()


def test_a_training_step_releases_what_it_took() -> None:
    model = torch.nn.Linear(256, 256)
    x = torch.ones(64, 256)
    for _ in range(2):
        model(x).sum().backward()
        model.zero_grad()
    with allocator_peak() as found:
        model(x).sum().backward()
        model.zero_grad()
    assert found.peak_bytes >= 256 * 256 * 4
    assert abs(found.kept_bytes) < 4096


def test_restart_forgets_the_peak_but_not_what_is_alive() -> None:
    with allocator_peak() as found:
        kept = torch.empty(1 << 16, dtype=torch.uint8)
        torch.empty(1 << 20, dtype=torch.uint8)
        found.restart()
        more = torch.empty(1 << 18, dtype=torch.uint8)
        del more
    expected = kept.numel() + (1 << 18)
    assert expected <= found.peak_bytes < expected + 4096


def test_resident_memory_is_at_least_a_megabyte() -> None:
    assert resident_bytes() > 1 << 20
