"""Parameters into flat buffers: which lie together, and the move itself."""

from collections.abc import Iterable

import torch
from torch import nn

from shardlab.plan.layout import Layout
from shardlab.plan.placement import ParamInfo
from shardlab.zero.checks import MARK
from shardlab.zero.gather import release, revive
from shardlab.zero.precision import Dtypes, Precision, dtypes_of
from shardlab.zero.stage0 import Stage0
from shardlab.zero.unit import FlatGroup, Member, Unit, UnitState, specs_of
from shardlab.zero.units import find_units

__all__ = ["flatten", "settle"]


def flatten(
    model: nn.Module,
    units: Iterable[nn.Module | type[nn.Module]] | None,
    stage: Stage0,
    precision: Precision | None,
) -> list[Unit]:
    """Say which parameters lie in which flat buffer, in registration order; nothing is moved yet."""
    dtypes = dtypes_of(model, precision)
    return [_make_unit(spec.name, spec.modules, spec.params, stage, dtypes) for spec in find_units(model, units)]


def settle(units: Iterable[Unit], stage: Stage0) -> None:
    """Move the values into flat buffers; what this rank does not keep is gone afterwards.

    Cost: one buffer of a unit's size at a time.
    """
    with torch.no_grad():
        for unit in units:
            _settle(unit, stage)


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


def _settle(unit: Unit, stage: Stage0) -> None:
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
            stage.pool.register(dtype, group.layout.numel)
    unit.state = UnitState.LIVE if stage.keeps_full else UnitState.SHARDED
