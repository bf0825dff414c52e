"""`shard`: make a model and its optimizer share their memory with the other ranks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.comm.communicator import Communicator
from shardlab.comm.protocols import GradSink, ShardStore
from shardlab.plan.layout import Layout
from shardlab.plan.placement import ParamInfo
from shardlab.zero import optimizer as optim
from shardlab.zero.checks import MARK, check_arguments
from shardlab.zero.digest import check_same_start
from shardlab.zero.gather import Gatherer, release, revive
from shardlab.zero.hooks import Hooks
from shardlab.zero.pool import BufferPool
from shardlab.zero.precision import Dtypes, Precision, dtypes_of
from shardlab.zero.reduce import Reducer
from shardlab.zero.sharding import Sharding, sharding_of
from shardlab.zero.stage0 import Stage0
from shardlab.zero.stage1 import Stage1
from shardlab.zero.stage2 import Stage2
from shardlab.zero.stage3 import Stage3
from shardlab.zero.step import StepHooks
from shardlab.zero.unit import FlatGroup, Member, Unit, UnitState, specs_of
from shardlab.zero.units import find_units
from shardlab.zero.visible import VisibleGrads

__all__ = ["grad_sink", "no_sync", "shard"]

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
    check_arguments(model, stage, store)
    comms = [comm] if replicas is None else [comm, replicas]
    instance = optim.made(optimizer, model)
    optim.check_kind(instance, stage)
    check_same_start(model, comms)
    device = next(model.parameters()).device
    pool = BufferPool(device)
    chosen = STAGES[stage](comm, pool)
    dtypes = dtypes_of(model, precision)
    made_units = [_make_unit(spec.name, spec.modules, spec.params, chosen, dtypes) for spec in find_units(model, units)]
    groups = [group for unit in made_units for group in unit.trained]
    optim.check_groups(instance, [member for group in groups for member in group.members], model)
    gatherer = Gatherer(comm, pool, made_units) if stage == 3 else None
    for unit in made_units:
        _settle(unit, chosen, pool)
    optim.cut(instance, groups, whole=stage == 0)
    scale = 1.0 / (comm.size * (replicas.size if replicas is not None else 1)) if grad_scale is None else grad_scale
    reducer = Reducer(comm, replicas, chosen, made_units, pool, scale)
    visible = VisibleGrads(groups, whole=stage == 0)
    compute = None if precision is None or precision.compute is None else precision.of(torch.float32).compute
    hooks = Hooks(model, made_units, reducer, gatherer, visible, compute)
    policy = "skip" if precision is None else precision.non_finite
    steps = StepHooks(instance, made_units, chosen, comms, hooks, policy)
    parts = Sharding(
        model, instance, comm, replicas, chosen, made_units, pool, reducer, gatherer, visible, hooks, steps
    )
    parts.attach()
    return model, instance


def _make_unit(
    name: str, modules: list[nn.Module], params: dict[str, nn.Parameter], stage: Stage0, by: dict[nn.Parameter, Dtypes]
) -> Unit:
    """A unit with one flat group per (dtypes, trained or frozen), in order of first appearance."""
    unit = Unit(name, modules)
    sorted_in: dict[tuple[Dtypes, bool], dict[str, nn.Parameter]] = {}
    for key, p in params.items():
        sorted_in.setdefault((by[p], p.requires_grad), {})[key] = p
    for (dtypes, trained), chosen in sorted_in.items():
        sharded = trained or not stage.keeps_full
        layout = Layout.of(specs_of(chosen, dtypes.compute, trained), stage.shards if sharded else 1)
        members = [Member(key, p, layout.offset(key), type(p)) for key, p in chosen.items()]
        unit.groups.append(FlatGroup(unit, members, layout, dtypes, trained, stage.index if sharded else 0))
        for p_name, p in chosen.items():
            p.shardlab_info = getattr(p, "shardlab_info", None) or ParamInfo(p_name)  # type: ignore[attr-defined]
    return unit


def _settle(unit: Unit, stage: Stage0, pool: BufferPool) -> None:
    """Move the values into flat buffers; what this rank does not keep is gone afterwards.

    Cost: one buffer of the unit's size at a time.
    """
    with torch.no_grad():
        for group in unit.groups:
            first = group.members[0].param
            full = torch.zeros(group.layout.numel, dtype=group.dtypes.compute, device=first.device)
            if group.trained and group.dtypes.master != group.dtypes.compute:
                group.master = torch.zeros(group.layout.shard_numel, dtype=group.dtypes.master, device=first.device)
                for member, start, stop, at in group.own:
                    group.master[at : at + stop - start] = member.param.reshape(-1)[start:stop]
            for member in group.members:
                member.of(full).copy_(member.param.reshape(-1))
            stage.settle(group, full)
            for member in group.members:
                revive(member.param, member.kind, member.of(full))
                setattr(member.param, MARK, unit.name)
                if not stage.keeps_full:
                    release(member.param, member.kind)
            for dtype in {group.dtypes.compute, group.dtypes.reduce} if group.trained else {group.dtypes.compute}:
                pool.register(dtype, group.layout.numel)
    unit.state = UnitState.LIVE if stage.keeps_full else UnitState.SHARDED


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
            f"no_sync at stage {sharding.stage.number}: gradients are sharded, so no rank could keep its whole "
            "local ones. "
            "Accumulation works without it: every backward is summed over the ranks as it ends"
        )
    before, sharding.reducer.sync = sharding.reducer.sync, False
    try:
        yield
    finally:
        sharding.reducer.sync = before


class _Sink:
    """GradSink of a sharded model."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self._places = {m.param: (group, m) for group in sharding.trained_groups for m in group.members}
        self._open = False

    def add(self, param: nn.Parameter, grad: Tensor, micro_batch: int) -> None:
        """Add the local gradient of one parameter; shape of the parameter."""
        if param not in self._places:
            raise ValueError(f"grad_sink: a parameter of shape {tuple(param.shape)} is not a trained one of this model")
        group, member = self._places[param]
        if grad.shape != param.shape:
            raise ValueError(
                f"grad_sink: {member.name!r} has shape {tuple(param.shape)}, its gradient {tuple(grad.shape)}"
            )
        if not self._open:
            self._sharding.visible.hide()
            self._open = True
        self._sharding.reducer.micro_batch = micro_batch
        with torch.no_grad():
            self._sharding.reducer.take(group, member, grad)

    def end(self, micro_batch: int) -> None:
        """Reduce what was added for ``micro_batch``; every rank of the group calls it."""
        if not self._open:
            self._sharding.visible.hide()
        self._open = False
        self._sharding.reducer.micro_batch = micro_batch
        self._sharding.reducer.end()
        self._sharding.visible.show()


def grad_sink(model: nn.Module) -> GradSink:
    """Where gradients go that autograd's hooks do not see, such as those of a split backward."""
    return _Sink(sharding_of(model))
