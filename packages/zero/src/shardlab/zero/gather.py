"""Stage 3: gather a unit's values when they are needed, free them after.

    need(u):  start u's gather if it has not started -> start the next unit's -> wait for u

Before each gather the ranks compare what they are about to gather, so that models that branch differently raise
everywhere, by name, instead of mixing bytes.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from shardlab.comm.communicator import Communicator, Pending
from shardlab.comm.guard import agree
from shardlab.zero.freed import freed_type, placeholder
from shardlab.zero.order import UseOrder
from shardlab.zero.pool import BufferPool
from shardlab.zero.unit import FlatGroup, Unit, UnitState

__all__ = ["Gatherer", "Packed"]


@dataclass(frozen=True)
class Packed:
    """A saved tensor that is part of a unit: where it lies, instead of its bytes."""

    group: FlatGroup
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Gatherer:
    """Moves the units of a stage-3 model between SHARDED, GATHERING and LIVE.

    Args:
        comm: the ranks that hold the shards.
        pool: lends the full buffers.
        units: all units, in registration order.
        prefetch: start the next unit's gather while this one computes.
    """

    def __init__(self, comm: Communicator, pool: BufferPool, units: list[Unit], prefetch: bool = True) -> None:
        self.comm, self.pool, self.units, self.prefetch = comm, pool, units, prefetch
        self.order = UseOrder()
        self.forwards = {True: 0, False: 0}  # of the whole model so far: training, evaluation
        self._training = False
        self._starting: bool | None = None  # a forward of this kind has started and gathered nothing yet
        self._times: Counter[Unit] = Counter()  # how often each unit was gathered in this forward and its backward
        self._under_way: dict[Unit, list[Pending]] = {}
        self._live: dict[int, FlatGroup] = {}  # storage of a full buffer -> its group

    def begin(self, training: bool) -> None:
        """A forward of the whole model starts; it counts once it gathers, so not on one rank inside `gathered`."""
        self._starting = training

    def end_forward(self) -> None:
        """It has ended: forget one that gathered nothing, free a unit fetched ahead for a use that did not come."""
        self._starting = None
        for unit in self.units:
            if unit.state is UnitState.GATHERING:
                self.free(unit)

    def need(self, unit: Unit) -> None:
        """Make ``unit`` live.

        Cost: (size - 1) x the unit's shard on the wire, one buffer of the unit's size; one more while the next one is
            fetched.
        """
        if unit.state is UnitState.LIVE:
            return
        with torch.inference_mode(False), torch.no_grad():
            self._begin_pass()
            following = self.order.use(unit)
            self._start(unit)
            if self.prefetch and following is not None and following.state is UnitState.SHARDED:
                self._start(following)
            self._finish(unit)

    def _begin_pass(self) -> None:
        if self._starting is None:
            return
        self._training, self._starting = self._starting, None
        self.forwards[self._training] += 1
        self._times.clear()
        self.order.begin(self._training)

    def _start(self, unit: Unit) -> None:
        if unit.state is not UnitState.SHARDED:
            return
        self._times[unit] += 1
        mode = "training" if self._training else "evaluation"
        which = f"{mode} forward {self.forwards[self._training]} (time {self._times[unit]})"
        agree(self.comm, f"gather in {which}", unit.name, unit.numel)
        unit.move(UnitState.GATHERING)
        pending = self._under_way[unit] = []
        with self.comm.recorder.labelled(name=unit.name):
            for group in unit.groups:
                group.full = self.pool.take(group.dtypes.compute, group.layout.numel)
                pending.append(self.comm.start_all_gather(group.full, group.shard))

    def _finish(self, unit: Unit) -> None:
        for pending in self._under_way[unit]:
            pending.wait()
        del self._under_way[unit]
        unit.move(UnitState.LIVE)
        for group in unit.groups:
            assert group.full is not None
            self._live[group.full.untyped_storage()._cdata] = group
            for member in group.members:
                revive(member.param, member.kind, member.of(group.full))

    def free(self, unit: Unit) -> None:
        """Give the unit's full buffers back; parameters become freed instances."""
        if unit.state is UnitState.GATHERING:  # fetched ahead for a use that did not come
            self._finish(unit)
        if unit.state is not UnitState.LIVE:
            return
        with torch.inference_mode(False), torch.no_grad():
            unit.move(UnitState.SHARDED)
            unit.in_backward = False
            for group in unit.groups:
                for member in group.members:
                    release(member.param, member.kind)
                assert group.full is not None
                full, group.full = group.full, None
                del self._live[full.untyped_storage()._cdata]
                self.pool.give(full)

    def free_idle(self) -> None:
        """Free every unit that no call, no backward and no `gathered` block needs."""
        for unit in self.units:
            if not (unit.calls or unit.held or unit.in_backward):
                self.free(unit)

    def pack(self, saved: Tensor) -> Packed | Tensor:
        """What autograd keeps of ``saved``: its place where it is part of a live unit, else itself."""
        group = self._live.get(saved.untyped_storage()._cdata)
        if group is None:
            return saved
        return Packed(group, int(saved.storage_offset()), tuple(saved.size()), saved.stride())

    def unpack(self, kept: Packed | Tensor) -> Tensor:
        """The tensor again; gathers its unit if need be."""
        if not isinstance(kept, Packed):
            return kept
        self.need(kept.group.unit)
        assert kept.group.full is not None
        with torch.no_grad():
            return kept.group.full.as_strided(kept.size, kept.stride, kept.offset)


def revive(p: Tensor, kind: type, flat: Tensor) -> None:
    """Make a parameter a view of ``flat``, an instance of its own type."""
    shape = torch.Size(p.shape)
    p.__class__ = kind
    p.data = flat.view(shape)


def release(p: Tensor, kind: type) -> None:
    """Take a parameter's bytes away."""
    p.data = placeholder(p)
    p.__class__ = freed_type(kind)
