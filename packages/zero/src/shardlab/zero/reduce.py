"""Gradients leave as a unit's backward ends; what remains is their sum over ranks and micro-batches.

    hook of a parameter -> take: copy its gradient into the unit's send buffer
    all of a unit's gradients are there, and the units before it are sent -> send (start the reduction)
    the next one is sent -> add: sum * grad_scale is added to the accumulator

Every rank sends all units in one order, reverse registration, in every backward; a unit without gradients is sent as
zeros. So ranks that skip different modules still agree. Used-flags, summed once at the end, tell which parameters no
rank used: those keep no gradient. A gradient that arrives after its unit was sent (reentrant checkpoints accumulate
more than once) goes out in a second round.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from shardlab.comm.communicator import MAX, Communicator, Pending
from shardlab.comm.guard import agree
from shardlab.comm.values import host_list
from shardlab.zero.pool import BufferPool
from shardlab.zero.stage0 import Stage0
from shardlab.zero.unit import FlatGroup, Member, Unit

__all__ = ["Reducer"]


@dataclass
class Sent:
    """A reduction under way."""

    group: FlatGroup
    pending: Pending
    part: Tensor


class Reducer:
    """Sums gradients over ranks and micro-batches.

    Args:
        comm: the ranks to sum over.
        replicas: groups of equal shards to sum over after that, or None.
        stage: how a flat buffer is reduced.
        units: all units in registration order.
        pool: lends send buffers.
        scale: what each reduced sum is multiplied by before it is added.
    """

    def __init__(
        self,
        comm: Communicator,
        replicas: Communicator | None,
        stage: Stage0,
        units: list[Unit],
        pool: BufferPool,
        scale: float,
    ) -> None:
        self.comm, self.replicas, self.stage, self.pool, self.scale = comm, replicas, stage, pool, scale
        self.order = [unit for unit in reversed(units) if unit.trained]
        self.members = [m for unit in self.order for group in unit.trained for m in group.members]
        self.sync = True  # False inside no_sync
        self.micro_batch = 0
        self._next = 0  # position in `order` of the unit that is sent next
        self._under_way: deque[Sent] = deque()
        self._fresh: list[Member] = []  # hold a gradient since this backward, perhaps only zeros

    # ---- taking ------------------------------------------------------------------------------------------------

    def take(self, group: FlatGroup, member: Member, grad: Tensor) -> None:
        """Copy or add one local gradient into the send buffer."""
        while any(sent.group is group for sent in self._under_way):  # late: until it is added, comm owns the buffer
            self._add(self._under_way.popleft())
        self._copy_in(group, member, grad.to_dense() if grad.is_sparse else grad)
        if self.sync:
            self._send_ready()

    def _copy_in(self, group: FlatGroup, member: Member, grad: Tensor) -> None:
        """Copy or add; no view of the send buffer outlives this call, else the pool could not lend it again."""
        if group.sending is None:
            group.sending = self.pool.take(group.dtypes.reduce, group.layout.numel)
        place = member.of(group.sending)
        if member.arrived or member.kept:
            place.add_(grad.reshape(-1))
        else:
            place.copy_(grad.reshape(-1))
        member.arrived = member.touched = True

    def _send_ready(self) -> None:
        """Send units, in order, as long as the next one is complete."""
        while self._next < len(self.order) and self.order[self._next].complete:
            self._send(self.order[self._next])
            self._next += 1

    def _send(self, unit: Unit) -> None:
        """Start the reductions of a unit; add up what was under way before."""
        agree(self.comm, "reduce", unit.name, unit.numel)
        for group in unit.trained:
            if group.sending is None:
                group.sending = self.pool.take(group.dtypes.reduce, group.layout.numel)
            group.clear_gaps(group.sending)
            with self.comm.recorder.labelled(name=unit.name, micro_batch=self.micro_batch):
                pending, part = self.stage.start_reduce(group, group.sending)
            for member in group.members:
                member.touched |= member.kept
                member.arrived = member.kept = False
            self._under_way.append(Sent(group, pending, part))
        while len(self._under_way) > len(unit.trained):
            self._add(self._under_way.popleft())

    # ---- adding ------------------------------------------------------------------------------------------------

    def _add(self, sent: Sent) -> None:
        """Wait for one reduction and add it to the accumulator."""
        sent.pending.wait()
        group, part = sent.group, sent.part
        if self.replicas is not None and self.replicas.size > 1:
            with self.comm.recorder.labelled(name=group.unit.name, micro_batch=self.micro_batch):
                self.replicas.all_reduce(part)
        scaled = part.to(group.dtypes.accumulate, copy=part is group.sending)
        if self.scale != 1.0:
            scaled.mul_(self.scale)
        if group.acc is None or not any(member.holds for member in group.members):
            group.acc = scaled
        else:
            kept = [piece for _, piece in group.pieces_of(group.acc)]
            for (member, more), old in zip(group.pieces_of(scaled), kept, strict=True):
                old.add_(more) if member.holds else old.copy_(more)
        self._fresh += [member for member in group.members if not member.holds]
        for member in group.members:
            member.holds = True
        self.stage.after_reduce(group)

    # ---- the end of a backward ---------------------------------------------------------------------------------

    def end(self) -> None:
        """All gradients of this backward have arrived: send what is left, agree on what was used."""
        if not self.sync:
            for member in self.members:
                member.kept |= member.arrived
                member.arrived = member.touched = False
            return
        while self._next < len(self.order):
            self._send(self.order[self._next])
            self._next += 1
        self._drain()
        used, late = self._agree_on_flags()
        for unit in self.order:
            if any(m in late for group in unit.trained for m in group.members):
                self._send(unit)
        self._drain()
        for member in self._fresh:
            member.holds = member in used
        for member in self.members:
            if used:  # else no parameter was asked for, which says nothing about the next backward
                member.used = member in used
            member.touched = False
        self._fresh, self._next = [], 0
        self.micro_batch += 1

    def _drain(self) -> None:
        while self._under_way:
            self._add(self._under_way.popleft())

    def _agree_on_flags(self) -> tuple[set[Member], set[Member]]:
        """Members that any rank used, and those that any rank still has to send."""
        mine = [[m.touched for m in self.members], [m.arrived for m in self.members]]
        flags = torch.tensor(mine, dtype=torch.uint8)
        with self.comm.recorder.labelled(control=True):
            for comm in (self.comm, self.replicas):
                if comm is not None and comm.size > 1:
                    comm.all_reduce(flags, MAX)
        used, late = ([m for m, flag in zip(self.members, row, strict=True) if flag] for row in host_list(flags, mine))
        return set(used), set(late)

    def check_summed(self) -> None:
        """Refuse to use gradients of which a part is only local.

        Raises:
            RuntimeError: names the first parameter that holds gradients from inside `no_sync`.
        """
        unsummed = next((m for m in reversed(self.members) if m.kept), None)
        if unsummed is not None:
            raise RuntimeError(
                f"parameter {unsummed.name!r} holds gradients from inside no_sync that were not summed over the ranks: "
                "run the last backward before a step outside no_sync, or clear the gradients"
            )

    def abort(self) -> None:
        """A backward raised: forget what it had not added yet; what was added stays until the gradients are cleared."""
        while self._under_way:
            self._under_way.popleft().pending.wait()
        self._fresh.clear()
        for unit in self.order:
            for group in unit.trained:
                self.stage.after_reduce(group)
                for member in group.members:
                    member.arrived = member.touched = member.kept = False
        self._next = 0
