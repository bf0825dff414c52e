"""Bytes by category as a fold over a program: each action adds or removes, and the highest sum is the peak.

Between steps a rank holds its state (`plan/state`). Within a step come and go

    activations   what forward keeps for backward (exact for the reference layers), and the temporaries of one layer
    gathered      whole units at stage 3, one flat buffer each
    buffers       local gradients of a unit from its first backward until their sum is added (stage 1 keeps them: they
                  are its gradients); what arrives during a reduction, which ends when the next one starts; a gradient
                  before it is copied; buffers that the pool keeps for the next unit of the same size

Temporaries are bounds, so the peak of a real run may lie a little below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardlab.plan.action import Action, Op
from shardlab.plan.blocks import checkpoint_tensors, saved_bytes, transient_bytes
from shardlab.plan.dtypes import itemsize
from shardlab.plan.flat import FlatGroup, flat_groups
from shardlab.plan.needs import StepShape
from shardlab.plan.plan import Plan
from shardlab.plan.state import state_bytes

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "padding")
"""Categories in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The peak of one rank in one step.

    Args:
        by_category: Bytes by category at the peak; they sum to `total_bytes`.
        at: The action during which the peak is reached, or None where nothing runs.
        saved_bytes: Most bytes of saved activations at any time.
        resting_bytes: Bytes between steps.
    """

    by_category: dict[str, int]
    at: Action | None
    saved_bytes: int
    resting_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes at the peak."""
        return sum(self.by_category.values())


def footprint(actions: Sequence[Action], plan: Plan, rank: int = 0, kernels: str = "cpu") -> Footprint:
    """Fold a program into the peak of a step that is not the first: the pool is warm.

    Args:
        actions: The program; all micro-batches after the first repeat it.
        plan: The plan it comes from.
        rank: dp rank.
        kernels: Whose activations: `cpu` or `cuda`.
    """
    walk = _Walk(plan, rank, kernels)
    for action in actions:
        walk.run(action)
    walk.best, walk.most_saved = None, 0
    for action in actions:
        walk.run(action)
    resting = sum(walk.state.values())
    now, at = walk.best or ({**dict.fromkeys(CATEGORIES, 0), **walk.state}, None)
    return Footprint({name: now[name] for name in CATEGORIES}, at, walk.most_saved, resting)


@dataclass(slots=True)
class _Pool:
    """Flat buffers that units borrow; those of a size that several borrow are kept for the next."""

    borrowers: Counter[tuple[str, int]]
    lent: Counter[tuple[str, int]] = field(default_factory=Counter)
    kept: Counter[tuple[str, int]] = field(default_factory=Counter)

    def take(self, dtype: str, numel: int) -> None:
        self.lent[dtype, numel] += 1
        if self.kept[dtype, numel]:
            self.kept[dtype, numel] -= 1

    def give(self, dtype: str, numel: int) -> None:
        self.lent[dtype, numel] -= 1
        if self.borrowers[dtype, numel] > 1:
            self.kept[dtype, numel] += 1

    @property
    def kept_bytes(self) -> int:
        return sum(count * numel * itemsize(dtype) for (dtype, numel), count in self.kept.items())


class _Walk:
    """What is alive while one walks through a program."""

    def __init__(self, plan: Plan, rank: int, kernels: str) -> None:
        self.batch = replace(plan.batch, kernels=kernels)
        self.plan, self.rank, self.shape, self.state = plan, rank, StepShape.of(plan), state_bytes(plan, rank)
        use, flat = plan.precision, [group for groups in flat_groups(plan).values() for group in groups]
        borrows = [{use.compute, use.reduce} if group.trained else {use.compute} for group in flat]
        sizes = [(dtype, group.layout.numel) for group, dtypes in zip(flat, borrows, strict=True) for dtype in dtypes]
        self.pool = _Pool(Counter(sizes))
        self.saved: dict[tuple[int | None, str], int] = {}
        self.saved_bytes = 0
        self.gathered: dict[str, int] = {}
        self.sending: dict[str, int] = {}
        self.arriving: str | None = None
        self.best: tuple[dict[str, int], Action | None] | None = None
        self.most_saved = 0

    def run(self, action: Action) -> None:
        """Let one action add, count what is alive, let it remove."""
        self._begin(action)
        self.most_saved = max(self.most_saved, self.saved_bytes)
        activations, buffers = self._temporaries(action)
        buffers += self.pool.kept_bytes + sum(self.sending.values())
        now = {
            **self.state,
            "activations": self.saved_bytes + activations,
            "gathered": sum(self.gathered.values()),
            "buffers": self.state["buffers"] + buffers,
        }
        if self.best is None or sum(now.values()) > sum(self.best[0].values()):
            self.best = now, action
        self._end(action)

    def _groups(self, unit: str, trained: bool) -> list[FlatGroup]:
        return [group for group in flat_groups(self.plan)[unit] if group.trained or not trained]

    def _whole(self, unit: str, dtype: str, trained: bool = False) -> int:
        return sum(group.whole_bytes(dtype) for group in self._groups(unit, trained))

    def _begin(self, action: Action) -> None:
        plan = self.plan
        if action.op is Op.F:
            layer = plan.model.layer(action.name)
            kept = checkpoint_tensors(layer, self.batch) if action.name in self.shape.recomputed else None
            size = saved_bytes(layer, self.batch) if kept is None else sum(tensor.nbytes for tensor in kept)
            self._save((action.micro_batch, action.name), size)
        elif action.op is Op.R:
            size = saved_bytes(plan.model.layer(action.name), self.batch)
            self._save((action.micro_batch, f"{action.name} again"), size)
        elif action.op is Op.GATHER and plan.zero == 3:
            self.gathered[action.name] = self._whole(action.name, plan.precision.compute)
            for group in self._groups(action.name, trained=False):
                self.pool.take(plan.precision.compute, group.layout.numel)
        elif action.op is Op.B and plan.zero != 1:
            for unit in self.shape.units_of[action.name]:
                if unit not in self.sending and unit in self.shape.reduced:
                    self.sending[unit] = self._whole(unit, plan.precision.reduce, trained=True)
                    for group in self._groups(unit, trained=True):
                        self.pool.take(plan.precision.reduce, group.layout.numel)

    def _save(self, key: tuple[int | None, str], size: int) -> None:
        self.saved[key] = size
        self.saved_bytes += size

    def _end(self, action: Action) -> None:
        if action.op is Op.B:
            for name in (action.name, f"{action.name} again"):
                self.saved_bytes -= self.saved.pop((action.micro_batch, name), 0)
        elif action.op is Op.FREE:
            del self.gathered[action.name]
            for group in self._groups(action.name, trained=False):
                self.pool.give(self.plan.precision.compute, group.layout.numel)
        elif action.op in (Op.REDUCE, Op.ALLREDUCE):
            self._added(self.arriving)
            self.arriving = action.name
            if action.name == self.shape.reduced[-1]:
                self._added(self.arriving)
                self.arriving = None

    def _added(self, unit: str | None) -> None:
        """The sum of a unit has been added to the accumulator: its send buffer goes back."""
        if unit is not None and unit in self.sending:
            del self.sending[unit]
            for group in self._groups(unit, trained=True):
                self.pool.give(self.plan.precision.reduce, group.layout.numel)

    def _temporaries(self, action: Action) -> tuple[int, int]:
        """Return bytes of activations and of buffers that live only now: of this action, of the reduction under way."""
        plan, activations, buffers = self.plan, 0, 0
        if action.op in (Op.REDUCE, Op.ALLREDUCE):
            # sent while its last gradient is still being copied; the reduction of the unit before it ends after that
            params = plan.model.unit(action.name).params
            last = max(param.numel for param in params if param.requires_grad) * itemsize(plan.precision.compute)
            before = 0
            if self.arriving is not None:  # at stage 0 what it received is gone by now
                before = self._sum_bytes(self.arriving) if plan.zero == 0 else self._received_bytes(self.arriving)
            buffers += max(self._received_bytes(action.name) + last + before, self._sum_bytes(action.name))
        elif self.arriving is not None:
            buffers += self._received_bytes(self.arriving)
        if action.op in (Op.F, Op.B, Op.R):
            layer = plan.model.layer(action.name)
            activations = transient_bytes(layer, self.batch, action.op is Op.B)
            if action.op is Op.B:
                largest = max((param.numel for param in layer.params if param.requires_grad), default=0)
                buffers += largest * itemsize(plan.precision.compute)
                buffers += self._tied_bytes(action.name)
        elif action.op is Op.STEP:
            buffers += self._step_bytes()
        return activations, buffers

    def _tied_bytes(self, layer: str) -> int:
        """Return the gradients of tied parameters that wait to be added to that of this layer, and the sum.

        The send buffer, which has been counted since the first of them, is not taken before the sum is there; stage 1
        always has it.
        """
        found = 0
        for unit in self.shape.units_of[layer]:
            users = self.shape.users[unit]
            if len(users) > 1 and layer == users[0]:
                found += self.plan.model.unit(unit).params[0].numel * itemsize(self.plan.precision.compute)
        return found * (2 if self.plan.zero == 1 else 1)

    def _step_bytes(self) -> int:
        """Return the temporaries of a step: those of the search for inf and NaN, then those of the update.

        The search holds the absolute values of one flat buffer and one flag each. The update holds gradients cast to
        the dtype of the master weights, where they are kept in another, and what the optimizer needs for one parameter.
        """
        use = self.plan.precision
        groups = [group for unit in self.shape.reduced for group in self._groups(unit, trained=True)]
        search = max((group.shard_bytes(use.accumulate) + group.layout.shard_numel for group in groups), default=0)
        casts = sum(group.shard_bytes(use.master) for group in groups) if use.accumulate != use.master else 0
        pieces = [piece for group in groups for piece in group.layout.pieces(self.rank if self.plan.zero else 0)]
        largest = max((piece.numel for piece in pieces), default=0)
        return max(search, casts + self.plan.optimizer_spec.temporaries * largest * itemsize(use.master))

    def _received_bytes(self, unit: str) -> int:
        """Return what a reduction receives, with its result where that is no part of the send buffer."""
        reduce, size = self.plan.precision.reduce, self.plan.dp
        if self.plan.zero == 0:
            return sum(
                group.layout.numel * (size - 1) // size for group in self._groups(unit, trained=True)
            ) * itemsize(reduce)
        return sum(group.shard_bytes(reduce) * size for group in self._groups(unit, trained=True))

    def _sum_bytes(self, unit: str) -> int:
        """Return what is held while a finished sum is added: at stage 0 a scaled copy of the send buffer."""
        use = self.plan.precision
        if self.plan.zero == 0:
            return self._whole(unit, use.accumulate, trained=True)
        sizes = {use.reduce, use.accumulate}  # cast first where it is accumulated in another dtype
        return sum(group.shard_bytes(dtype) for group in self._groups(unit, trained=True) for dtype in sizes)
