"""Learning-rate schedules as closed forms of the number of optimizer steps taken."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from shardlab.plan.config import SchedulerConfig, SchedulerParams

__all__ = ["make_scheduler", "warmup_cosine"]


def warmup_cosine(params: SchedulerParams) -> Callable[[int], float]:
    """Warm up, then follow half a cosine down.

    Args:
        params: ``warmup_num_steps`` steps from ``warmup_min_ratio`` to 1, linearly or with the logarithm of the step,
            then down to ``cos_min_ratio`` at ``total_num_steps`` and on from there.

    Returns:
        The factor of the learning rate at position k: update k + 1 uses position k, so the first update uses position
        0.
    """
    warmup, total, low = params.warmup_num_steps, params.total_num_steps, params.cos_min_ratio

    def factor(position: int) -> float:
        if position < warmup:
            share = position / warmup
            if params.warmup_type == "log" and warmup > 1:
                share = math.log(position + 1) / math.log(warmup)
            return params.warmup_min_ratio + (1 - params.warmup_min_ratio) * min(share, 1.0)
        done = min((position - warmup) / max(total - warmup, 1), 1.0)
        return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2

    return factor


def make_scheduler(config: SchedulerConfig, optimizer: Optimizer) -> LambdaLR:
    """The scheduler that a configuration describes, over all groups of ``optimizer``."""
    return LambdaLR(optimizer, warmup_cosine(config.params))
