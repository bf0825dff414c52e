"""Bytes of living tensors, real and fake."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.engine.live import LiveBytes, StorageBytes


def test_each_storage_counts_once_while_it_lives() -> None:
    with LiveBytes() as live:
        a = torch.zeros(100)
        view = a[10:20].view(2, 5)
        assert live.now_bytes == 400
        b = a + 1
        assert live.now_bytes == 800
        b.add_(1)
        assert live.now_bytes == 800
        del a
        assert live.now_bytes == 800, "the view holds the storage"
        del view
        assert live.now_bytes == 400
        del b
    assert live.now_bytes == 0
    assert live.peak_bytes == 800


def test_the_peak_has_what_nobody_keeps_and_starts_anew() -> None:
    with LiveBytes() as live:
        total = (torch.ones(1000) * 2).sum()
        assert live.peak_bytes == 8000
        live.restart()
        assert live.peak_bytes == live.now_bytes == 4
        del total
    assert live.peak_bytes == 4


def test_fake_tensors_count_as_real_ones() -> None:
    def work() -> tuple[int, int]:
        with LiveBytes() as live:
            weight = torch.ones(50, 30, requires_grad=True)
            loss = torch.relu(torch.ones(7, 50) @ weight).square().mean()
            during = live.now_bytes
            loss.backward()
            return during, live.peak_bytes

    real = work()
    with FakeTensorMode():
        assert work() == real
    assert real[0] > 50 * 30 * 4


def test_a_set_of_storages_knows_its_members() -> None:
    found, tensor, other = StorageBytes(), torch.zeros(8), torch.zeros(8)
    found.add(tensor)
    found.add(tensor[2:])
    assert tensor[5:] in found
    assert other not in found
    assert found.now_bytes == 32
    del tensor
    assert found.now_bytes == 0
