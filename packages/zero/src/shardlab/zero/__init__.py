"""ZeRO: optimizer state, gradients and parameters shared out over data-parallel ranks.

Start reading at `api.shard`, then stage0 to stage3, then follow one parameter through `hooks`, `gather`, `reduce` and
`step`.
"""

from shardlab.zero.access import gathered, inspect
from shardlab.zero.api import no_sync, shard
from shardlab.zero.clip import clip_grad_norm_
from shardlab.zero.freed import FreedParameterError
from shardlab.zero.precision import Precision
from shardlab.zero.shown import ShardedGradError
from shardlab.zero.sink import grad_sink
from shardlab.zero.step import NonFiniteGradientError

__all__ = [
    "FreedParameterError",
    "NonFiniteGradientError",
    "Precision",
    "ShardedGradError",
    "clip_grad_norm_",
    "gathered",
    "grad_sink",
    "inspect",
    "no_sync",
    "shard",
]
