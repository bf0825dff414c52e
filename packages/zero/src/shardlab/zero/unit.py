"""A unit: parameters that are gathered and freed together, in one flat buffer per dtype.

FlatGroup.full     |  w1 ..  |  b1 ..  |  w2 ......  |   all values, in the compute dtype
                   |<- rank 0 ->|<- rank 1 ->|<- ... ->|
FlatGroup.shard    this rank's part of it
FlatGroup.master   the same part in the dtype that the optimizer updates, when that is another one
FlatGroup.sending  local gradients of one backward, laid out like `full`, in the reduce dtype
FlatGroup.acc      sum over micro-batches of reduced gradients, laid out like `shard`
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from shardlab.comm.values import host_value
from shardlab.plan.layout import Layout, ParamSpec
from shardlab.zero.precision import Dtypes

__all__ = ["Calls", "FlatGroup", "Member", "Unit", "UnitState"]


class UnitState(Enum):
    """Where the values of a unit are, and which memory each state holds.

    SHARDED    the shard; parameters are freed instances
    GATHERING  the shard and a full buffer that comm is writing
    LIVE       the shard and the full buffer; parameters are views of it (at stages 0 to 2 for ever)
    """

    SHARDED = "sharded"
    GATHERING = "gathering"
    LIVE = "live"


_MOVES = {
    UnitState.SHARDED: {UnitState.GATHERING},
    UnitState.GATHERING: {UnitState.LIVE},
    UnitState.LIVE: {UnitState.SHARDED},
}


@dataclass(eq=False)
class Member:
    """One parameter in a flat group.

    Attributes:
        kind: type of the parameter while live.
        used: some rank had a gradient for it in the last backward; a unit waits for these only.
        arrived: it has a local gradient of this backward in ``FlatGroup.sending``.
        kept: ``FlatGroup.sending`` holds local gradients of it from backwards inside `no_sync`.
        touched: it had a local gradient at any time in this backward.
        holds: ``FlatGroup.acc`` holds a gradient of it.
        shown: what `param.grad` shows while ``holds``.
        segment: the optimizer's parameter: this rank's piece of it, 1-D; None where the rank owns nothing of it.
    """

    name: str
    param: nn.Parameter
    offset: int
    kind: type
    used: bool = True
    arrived: bool = False
    kept: bool = False
    touched: bool = False
    holds: bool = False
    shown: Tensor | None = None
    segment: nn.Parameter | None = None

    @property
    def numel(self) -> int:
        """Number of elements of the whole parameter."""
        return self.param.numel()

    def of(self, flat: Tensor) -> Tensor:
        """This parameter inside a buffer laid out like ``FlatGroup.full``, 1-D."""
        return flat[self.offset : self.offset + self.numel]


@dataclass(eq=False)
class FlatGroup:
    """The parameters of one unit that have one dtype and are all trained or all frozen."""

    unit: "Unit"
    members: list[Member]
    layout: Layout
    dtypes: Dtypes
    trained: bool
    index: int
    full: Tensor | None = None
    shard: Tensor = field(default_factory=lambda: torch.empty(0))
    master: Tensor | None = None
    sending: Tensor | None = None
    acc: Tensor | None = None

    def __post_init__(self) -> None:
        self.by_name = {member.name: member for member in self.members}
        self.own = [
            (self.by_name[piece.name], piece.start, piece.stop, piece.flat_start - self.index * self.layout.shard_numel)
            for piece in self.layout.pieces(self.index)
        ]

    @property
    def values(self) -> Tensor:
        """The shard that the optimizer updates."""
        return self.shard if self.master is None else self.master

    def part(self, flat: Tensor) -> Tensor:
        """This rank's part of a buffer laid out like ``full``."""
        n = self.layout.shard_numel
        return flat[self.index * n : (self.index + 1) * n]

    def pieces_of(self, part: Tensor) -> Iterator[tuple[Member, Tensor]]:
        """Each owned member with its piece of a buffer laid out like ``shard``."""
        for member, start, stop, at in self.own:
            yield member, part[at : at + stop - start]

    def strayed(self) -> Iterator[Member]:
        """Members whose parameter lies elsewhere than in ``full``, because the user gave it other memory."""
        assert self.full is not None
        place = self.full.untyped_storage()._cdata
        return (member for member in self.members if member.param.untyped_storage()._cdata != place)

    def take_edits(self) -> None:
        """Carry over to the master weights what was written into the weights that compute, and nothing else."""
        if self.master is None:
            return
        kept = self.master.to(self.shard.dtype) == self.shard
        if not host_value(kept.all(), True):
            self.master.copy_(torch.where(kept, self.master, self.shard))

    def clear_gaps(self, flat: Tensor) -> None:
        """Zero what belongs to no parameter that has a local gradient in a buffer laid out like ``full``."""
        at = 0
        for member in self.members:
            if (member.arrived or member.kept) and member.numel:
                flat[at : member.offset].zero_()
                at = member.offset + member.numel
        flat[at:].zero_()


@dataclass(eq=False)
class Unit:
    """Parameters gathered and freed together.

    Attributes:
        modules: the modules whose call needs the unit.
        calls: how many of their calls are under way.
        held: how many `gathered` blocks keep it live.
        in_backward: gathered for a backward that still needs it.
        awaited_inputs: inputs of its calls whose gradient has not come yet (counted only for units with frozen
            parameters).
    """

    name: str
    modules: list[nn.Module]
    groups: list[FlatGroup] = field(default_factory=list)
    state: UnitState = UnitState.SHARDED
    calls: int = 0
    held: int = 0
    in_backward: bool = False
    awaited_inputs: int = 0

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(
            "a sharded model cannot be copied or pickled: its hooks, buffers and ranks are its own. Copy it before "
            "shard, or take model.state_dict(), at stage 3 inside `with shardlab.zero.gathered(model):`"
        )

    def __repr__(self) -> str:
        return f"Unit({self.name!r}, {self.state.value}, {self.numel} elements)"

    def move(self, state: UnitState) -> None:
        """Change state; an illegal move is a fault of shardlab."""
        assert state in _MOVES[self.state], f"unit {self.name!r} cannot go from {self.state.value} to {state.value}"
        self.state = state

    @property
    def trained(self) -> list[FlatGroup]:
        """The groups that have gradients."""
        return [group for group in self.groups if group.trained]

    @property
    def frozen(self) -> bool:
        """Whether it holds any frozen parameter."""
        return any(not group.trained for group in self.groups)

    @property
    def numel(self) -> int:
        """Elements of all its flat buffers, padding included."""
        return sum(group.layout.numel for group in self.groups)

    @property
    def complete(self) -> bool:
        """Whether every gradient that the last backward had has arrived."""
        return all(member.arrived or not member.used for group in self.trained for member in group.members)


@dataclass(eq=False)
class Calls:
    """The calls of one module that are under way, and the units that they need."""

    needed: list[Unit] = field(default_factory=list)
    entered: int = 0

    def left(self) -> bool:
        """A call ends; whether its beginning was seen: a user's pre-hook that runs before ours may have raised."""
        if not self.entered:
            return False
        self.entered -= 1
        return True


def specs_of(params: dict[str, nn.Parameter], dtype: torch.dtype, trained: bool) -> list[ParamSpec]:
    """What a Layout needs to know of parameters that will be held in ``dtype``."""
    return [ParamSpec(name, tuple(p.shape), str(dtype), trained) for name, p in params.items()]
