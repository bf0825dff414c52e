"""Predict what a training run will need before it is started; imports neither torch nor MPI.

from shardlab.sim import estimate

answer = estimate("llama3-8b", gpus=64, device="h100-80g", zero=3)
answer.fits, answer.memory.allocated, answer.to_dict()["result"]
"""

from __future__ import annotations

from typing import Any

from shardlab.plan import Machine, ModelSpec
from shardlab.sim.answer import Estimate, answer
from shardlab.sim.catalog import load_machine, machine_names
from shardlab.sim.request import Request, RequestError

__all__ = ["Estimate", "Request", "RequestError", "estimate", "load_machine", "machine_names"]


def estimate(model: str | ModelSpec, *, gpus: int, device: str | Machine, **more: Any) -> Estimate:
    """Predict memory, wire bytes and time of a run.

    Args:
        model: Preset name, `config.json`, count such as "7.5e9", or a model.
        gpus: Number of ranks.
        device: Machine name or file, or a machine.
        more: The other fields of `Request`: nodes, zero, micro_batch, global_batch, seq, recompute, precision,
            optimizer, config.

    Raises:
        RequestError: If an argument is faulty or names what is not built yet.
    """
    try:
        request = Request(model, gpus, device, **more)
    except TypeError as error:
        raise RequestError(f"estimate: {error}") from None
    return answer(request)
