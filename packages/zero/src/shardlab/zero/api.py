"""`shard`: make a model and its optimizer share their memory with the other ranks."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer

from shardlab.comm.communicator import Communicator
from shardlab.comm.protocols import ShardStore
from shardlab.zero import optimizer as optim
from shardlab.zero.checks import check_arguments
from shardlab.zero.digest import check_same_start
from shardlab.zero.flatten import flatten, settle
from shardlab.zero.gather import Gatherer
from shardlab.zero.hooks import Hooks
from shardlab.zero.pool import BufferPool
from shardlab.zero.precision import Precision
from shardlab.zero.reduce import Reducer
from shardlab.zero.sharding import Sharding, sharding_of
from shardlab.zero.stage0 import Stage0
from shardlab.zero.stage1 import Stage1
from shardlab.zero.stage2 import Stage2
from shardlab.zero.stage3 import Stage3
from shardlab.zero.step import StepHooks
from shardlab.zero.unit import Unit
from shardlab.zero.visible import VisibleGrads

__all__ = ["no_sync", "shard"]

STAGES: tuple[type[Stage0], ...] = (Stage0, Stage1, Stage2, Stage3)


def shard(
    model: nn.Module,
    optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer],
    comm: Communicator,
    *,
    stage: int,
    replicas: Communicator | None = None,
    units: Iterable[nn.Module | type[nn.Module]] | None = None,
    precision: Precision | None = None,
    store: ShardStore | None = None,
    grad_scale: float | None = None,
) -> tuple[nn.Module, Optimizer]:
    """Shard a model and its optimizer over the ranks of ``comm`` (ZeRO stages 0 to 3).

    Afterwards the usual loop trains it: forward, backward, ``optimizer.step()``, ``optimizer.zero_grad()``. Every
    backward is summed over the ranks as it ends, so accumulation is several backwards before a step.

    Args:
        model: on the device of the mesh, with the same values on every rank. Edited in place.
        optimizer: an instance, edited in place (groups, schedulers and hooks keep working), or a function that makes
            one of the model's whole parameters.
        comm: the ranks that share the states; one data-parallel group.
        stage: 0 nothing is sharded, 1 optimizer state, 2 gradients too, 3 parameters too.
        replicas: ranks that hold equal shards; gradients are summed over them as well (hybrid sharding).
        units: modules, or their classes, to gather and free together; None: the blocks of the model (see units.py).
        precision: which dtype holds what; None: each parameter's own, as in plain PyTorch.
        store: not built yet.
        grad_scale: factor of each reduced sum; None: 1 / number of ranks, so that gradients are averaged.

    Returns:
        The same model and the optimizer.

    Raises:
        ValueError: names the parameter, the optimizer or the argument that is wrong.

    Cost: stage 0 to 2: 2 (N - 1) / N x gradient bytes on the wire per step; stage 3: 3. Memory per rank: see
        ``zsim estimate``.

    Source: Rajbhandari et al. 2020, ZeRO, sections 5 and 7.
    """
    check_arguments(model, comm, stage, store)
    comms = [comm] if replicas is None else [comm, replicas]
    instance = optim.made(optimizer, model)
    optim.check_kind(instance, stage)
    check_same_start(model, comms)
    chosen = STAGES[stage](comm, BufferPool(next(model.parameters()).device))
    flat_units = flatten(model, units, chosen, precision)
    groups = [group for unit in flat_units for group in unit.trained]
    optim.check_groups(instance, [member for group in groups for member in group.members], model)
    settle(flat_units, chosen)
    optim.cut(instance, groups, whole=stage == 0)
    scale = 1.0 / math.prod(each.size for each in comms) if grad_scale is None else grad_scale
    _connect(model, instance, comms, chosen, flat_units, precision, scale)
    return model, instance


def _connect(
    model: nn.Module,
    optimizer: Optimizer,
    comms: list[Communicator],
    stage: Stage0,
    units: list[Unit],
    precision: Precision | None,
    scale: float,
) -> None:
    """Attach the parts that make the flat units train: who gathers, who reduces, and the hooks that tell them when."""
    comm, replicas = comms[0], comms[1] if len(comms) > 1 else None
    gatherer = None if stage.keeps_full else Gatherer(comm, stage.pool, units)
    reducer = Reducer(comm, replicas, stage, units, stage.pool, scale)
    visible = VisibleGrads([group for unit in units for group in unit.trained], whole=stage.number == 0)
    compute = None if precision is None or precision.compute is None else precision.of(torch.float32).compute
    hooks = Hooks(model, units, reducer, gatherer, visible, compute)
    policy = "skip" if precision is None else precision.non_finite
    steps = StepHooks(model, optimizer, units, stage, comms, hooks, policy)
    Sharding(
        model, optimizer, comm, replicas, stage, units, stage.pool, reducer, gatherer, visible, hooks, steps
    ).attach()


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Inside the block backward adds gradients locally; the first backward outside sums all of them over the ranks.

    Until then `.grad` is a stand-in, and a step or a norm raises.

    Raises:
        ValueError: at stages 2 and 3, where no rank keeps whole gradients. There every backward is summed as it ends,
            so accumulation needs no such block.
    """
    sharding = sharding_of(model)
    if sharding.stage.number >= 2:
        raise ValueError(
            f"no_sync at stage {sharding.stage.number}: gradients are sharded, so no rank could keep whole local ones. "
            "Accumulation works without it: every backward is summed over the ranks as it ends"
        )
    before, sharding.reducer.sync = sharding.reducer.sync, False
    try:
        yield
    finally:
        sharding.reducer.sync = before
