"""Schedules against their closed forms, position by position."""

import math

import pytest
import torch

from shardlab.engine.schedulers import make_scheduler, warmup_cosine
from shardlab.plan.config import SchedulerConfig, SchedulerParams


def test_linear_warmup_then_cosine() -> None:
    factor = warmup_cosine(
        SchedulerParams(total_num_steps=10, warmup_num_steps=4, cos_min_ratio=0.1, warmup_type="linear")
    )
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * k / 6)) / 2 for k in range(7)]
    assert [factor(k) for k in range(11)] == pytest.approx([0, 0.25, 0.5, 0.75, *cosine], abs=1e-12)
    assert factor(100) == pytest.approx(0.1)


def test_logarithmic_warmup_reaches_one_at_its_last_step() -> None:
    factor = warmup_cosine(SchedulerParams(total_num_steps=100, warmup_num_steps=8, warmup_min_ratio=0.2))
    for k in range(8):
        assert factor(k) == pytest.approx(0.2 + 0.8 * math.log(k + 1) / math.log(8))
    assert factor(7) == pytest.approx(1.0)


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("kind", ["log", "linear"])
def test_warmup_of_no_or_one_step(warmup: int, kind: str) -> None:
    factor = warmup_cosine(SchedulerParams(total_num_steps=4, warmup_num_steps=warmup, warmup_type=kind))
    assert factor(warmup) == pytest.approx(1.0)
    assert all(math.isfinite(factor(k)) for k in range(8))


def test_the_scheduler_scales_every_group() -> None:
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.01}])
    params = SchedulerParams(total_num_steps=4, warmup_num_steps=2, warmup_type="linear")
    scheduler = make_scheduler(SchedulerConfig(type="WarmupCosineLR", params=params), optimizer)
    rates = []
    for _ in range(3):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    assert rates == [pytest.approx([0, 0]), pytest.approx([0.05, 0.005]), pytest.approx([0.1, 0.01])]
