"""Whole values of sharded things: for reading, for editing, for looking at."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from shardlab.comm.communicator import MAX
from shardlab.comm.values import host_value
from shardlab.zero.digest import digest
from shardlab.zero.gather import revive
from shardlab.zero.sharding import Sharding, sharding_of
from shardlab.zero.unit import FlatGroup, Member, Unit

__all__ = ["gathered", "inspect"]


@contextmanager
def gathered(model: nn.Module, *names: str, write_from: int | None = None) -> Iterator[None]:
    """Inside the block the named parameters are whole on every rank.

    They take part in autograd as usual, so a penalty on weights may be computed from them. Every rank of the group
    enters.

    Args:
        model: what ``shard`` returned.
        names: parameters; none means all.
        write_from: index in the group of the rank whose edits count; they reach all ranks when the block ends. None:
            the block is for reading.

    Raises:
        KeyError: no such parameter.
        RuntimeError: values were edited without ``write_from``.

    Cost: the all-gather of each unit concerned (stage 3); a broadcast of it with ``write_from``; one pass to notice
        edits.
    """
    sharding = sharding_of(model)
    sharding.hooks.tidy()
    members = [sharding.find(name) for name in names] if names else _all(sharding)
    units = list(dict.fromkeys(unit for unit, _, _ in members))
    for unit in units:
        unit.held += 1
        if sharding.gatherer is not None:
            sharding.gatherer.need(unit)
    saved = sharding.hooks.saved
    before = {} if write_from is not None else {m: digest(m.param) for _, _, m in members}
    sharding.reading.append(before)
    if saved is not None:
        saved.enter()
    try:
        yield
        _settle_edits(sharding, units, before, write_from)
    finally:
        sharding.reading.pop()
        if saved is not None:
            saved.leave()
        for unit in units:
            unit.held -= 1
        if sharding.gatherer is not None:
            sharding.gatherer.free_idle()


def _all(sharding: Sharding) -> list[tuple[Unit, FlatGroup, Member]]:
    return [(unit, group, member) for unit in sharding.units for group in unit.groups for member in group.members]


def _settle_edits(sharding: Sharding, units: list[Unit], before: dict[Member, Tensor], write_from: int | None) -> None:
    """Send the edits of one rank to all, or find that there were none."""
    for member, value in before.items():
        if not bool(host_value(digest(member.param) == value, True)):
            raise RuntimeError(
                f"parameter {member.name!r} was edited inside gathered() without write_from: the edit is "
                "dropped at stage 3 and "
                "differs between ranks elsewhere. Pass write_from=INDEX to say whose edits count"
            )
    if write_from is None:
        return
    with torch.no_grad():
        for group in (group for unit in units for group in unit.groups):
            assert group.full is not None
            for member in group.strayed():  # an assignment to .data
                member.of(group.full).copy_(member.param.reshape(-1))
                revive(member.param, member.kind, member.of(group.full))
            with sharding.comm.recorder.labelled(name=group.unit.name):
                sharding.comm.broadcast(group.full, write_from)
            own = group.part(group.full)
            if own.data_ptr() != group.shard.data_ptr():
                group.shard.copy_(own)
            group.take_edits()
            for reading in sharding.reading:  # no surprise to a block around this one
                reading.update({member: digest(member.param) for member in group.members if member in reading})


def inspect(model: nn.Module, name: str, what: str = "param") -> Tensor | None:
    """The whole of something that is sharded, in the shape of the parameter, the same on every rank.

    Args:
        model: what ``shard`` returned.
        name: of the parameter.
        what: "param" (compute dtype), "master", "grad" (accumulated), or a key of the optimizer's state such as
            "exp_avg". A state that is not of the parameter's shape (a step count) is returned as it is.

    Returns:
        A new tensor; None where there is nothing (no gradient, no such state yet).

    Raises:
        KeyError: no such parameter.

    Cost: one all-reduce of the whole tensor, as a control message.
    """
    sharding = sharding_of(model)
    sharding.visible.forget_cleared()
    _, group, member = sharding.find(name)
    if not member.numel and what in ("param", "master"):  # no rank owns a piece of it
        return torch.empty(member.param.shape, dtype=group.dtypes.compute if what == "param" else group.dtypes.master)
    with torch.no_grad():
        pieces = _pieces(sharding, group, member, what)
        scalar = next((x for _, x in pieces if x.dim() == 0), None)
        sample = next((x for _, x in pieces), None)
        dtype = _agree_on_dtype(sharding, sample)
        if dtype is None:
            return None
        if _any(sharding, scalar is not None):
            value = torch.zeros((), dtype=dtype) if scalar is None else scalar.clone()
            _over_ranks(sharding, value, maximum=True)
            return value
        whole = torch.zeros(member.numel, dtype=dtype)
        for start, x in pieces:
            whole[start : start + x.numel()] = x.reshape(-1)
        _over_ranks(sharding, whole)
        return whole.view(member.param.shape)


def _pieces(sharding: Sharding, group: FlatGroup, member: Member, what: str) -> list[tuple[int, Tensor]]:
    """What this rank has: (first element, piece). At one shard index 0 has all, so others give nothing."""
    if group.layout.shards == 1 and sharding.comm.index != 0:
        return []
    source = {"param": group.shard, "master": group.values, "grad": group.acc if member.holds else None}
    if what in source:
        flat = source[what]
        at = [(start, where, stop - start) for owner, start, stop, where in group.own if owner is member]
        return [] if flat is None else [(start, flat[where : where + n]) for start, where, n in at]
    state = sharding.optimizer.state.get(member.segment, {}) if member.segment is not None else {}
    value = state.get(what)
    if not isinstance(value, Tensor):
        return []
    start = next((start for owner, start, _, _ in group.own if owner is member), 0)
    return [(start, value)]


_DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
]


def _agree_on_dtype(sharding: Sharding, sample: Tensor | None) -> torch.dtype | None:
    """The dtype of what some rank has; None when no rank has anything."""
    code = torch.tensor([0 if sample is None else 1 + _DTYPES.index(sample.dtype)])
    _over_ranks(sharding, code, maximum=True)
    found = int(host_value(code[0], 0))
    return _DTYPES[found - 1] if found else None


def _any(sharding: Sharding, mine: bool) -> bool:
    flag = torch.tensor([int(mine)])
    _over_ranks(sharding, flag, maximum=True)
    return bool(host_value(flag[0], 0))


def _over_ranks(sharding: Sharding, x: Tensor, maximum: bool = False) -> None:
    with sharding.comm.recorder.labelled(control=True):
        if maximum:
            sharding.comm.all_reduce(x, MAX)
        else:
            sharding.comm.all_reduce(x)
