"""The norm of the whole gradient, and clipping by it, from pieces."""

import torch
from torch.optim import Optimizer

from shardlab.comm.values import host_value
from shardlab.zero.sharding import Sharding, sharding_of

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(optimizer: Optimizer, max_norm: float) -> torch.Tensor:
    """Scale all gradients so that their joint 2-norm is at most ``max_norm``.

    Each rank sums the squares of its pieces in fp64; the sums are added in rank order and rounded once, so all stages
    get the same norm. A norm that is not finite scales nothing: the step then does what ``Precision.non_finite`` says.

    Args:
        optimizer: the one that ``shard`` returned.
        max_norm: largest norm to let through.

    Returns:
        The norm before clipping, fp32 scalar (fp64 if a gradient is fp64), the same on every rank.

    Cost: one all-reduce of 8 bytes, as a control message; reads every gradient once, writes it once if it clips.
    """
    sharding = sharding_of(optimizer)
    sharding.visible.forget_cleared()
    sharding.reducer.check_summed()
    with torch.no_grad():
        norm = _norm(sharding)
        factor = max_norm / (float(host_value(norm, 0.0)) + 1e-6)
        if factor < 1.0 and torch.isfinite(norm):
            scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
            for group in sharding.trained_groups:
                if group.acc is not None:
                    group.acc.mul_(scale)  # a 0-dim factor is not rounded to the dtype of the gradients
    return norm


def _norm(sharding: Sharding) -> torch.Tensor:
    squares = torch.zeros(1, dtype=torch.float64)
    for group in sharding.trained_groups:
        if group.acc is not None:
            for member, piece in group.pieces_of(group.acc):
                if member.holds:
                    squares += piece.double().square().sum()
    comm = sharding.comm
    if sharding.stage.shards > 1:
        with comm.recorder.labelled(control=True):
            comm.all_reduce(squares)
    wide = any(group.dtypes.accumulate is torch.float64 for group in sharding.trained_groups)
    return squares.sqrt().to(torch.float64 if wide else torch.float32)[0]
