"""Keep what the user sees in `.grad` in step with what the accumulators hold.

a backward starts   what the user cleared (`optimizer.zero_grad`, `model.zero_grad`, `p.grad = None`) is forgotten;
`.grad` is
                    emptied, because autograd would add to whatever stands there
it has ended        parameters that hold a gradient show it: the real one at stage 0, a stand-in above
"""

from collections.abc import Iterable

from torch import Tensor, nn

from shardlab.comm.base import same_memory
from shardlab.zero.shown import ShardedGradError, StandIn, part_of, stand_in
from shardlab.zero.unit import FlatGroup, Member

__all__ = ["VisibleGrads"]


class VisibleGrads:
    """The `.grad` of every trained parameter and of every piece that the optimizer holds.

    Args:
        groups: all trained flat groups.
        whole: stage 0: a rank holds whole gradients.
    """

    def __init__(self, groups: Iterable[FlatGroup], whole: bool) -> None:
        self.groups, self.whole = list(groups), whole

    def hide(self) -> None:
        """Forget what was cleared, then empty `.grad` of every parameter."""
        for group in self.groups:
            for member in group.members:
                self._forget_if_cleared(group, member)
                if member.param.grad is not None:
                    member.param.grad = None

    def _forget_if_cleared(self, group: FlatGroup, member: Member) -> None:
        p, segment = member.param, member.segment
        if p.grad is not None and p.grad is not member.shown:
            self._adopt(group, member, p.grad)
        elif member.holds and (p.grad is None or (segment is not None and segment.grad is None)):
            member.holds = member.kept = False
            if segment is not None:
                segment.grad = None
        elif member.kept and p.grad is None:
            member.kept = False
        if not (member.holds or member.kept):
            member.shown = None

    def _adopt(self, group: FlatGroup, member: Member, grad: Tensor) -> None:
        """The user put a gradient of their own: at stage 0 it is taken, above there is no place for a whole one."""
        if not self.whole:
            raise ShardedGradError(
                f"parameter {member.name!r}: .grad was set to a tensor, but its gradient is sharded over ranks. "
                "Add gradients "
                "with shardlab.zero.grad_sink(model).add(param, grad, micro_batch) and .end(micro_batch)"
            )
        if group.acc is None:
            group.acc = group.shard.new_zeros(group.layout.shard_numel, dtype=group.dtypes.accumulate)
        member.of(group.acc).copy_(grad.reshape(-1))
        member.holds, member.kept = True, False

    def forget_cleared(self) -> None:
        """Forget what was cleared; what is still held stays visible."""
        for group in self.groups:
            for member in group.members:
                self._forget_if_cleared(group, member)
        self.show()

    def show(self) -> None:
        """Show every gradient that is held."""
        for group in self.groups:
            for member in group.members:
                if member.holds:
                    self._show_param(group, member)
                elif member.kept:
                    member.shown = member.shown if member.shown is not None else stand_in(member.param, member.name)
                    member.param.grad = member.shown
                else:
                    member.shown = None
                    set_grad(member.param, None)
            if group.acc is None:
                continue
            for member, piece in group.pieces_of(group.acc):
                if member.segment is not None and member.segment is not member.param:
                    member.segment.grad = self._for_segment(group, member, piece)

    def _show_param(self, group: FlatGroup, member: Member) -> None:
        p, acc = member.param, group.acc
        assert acc is not None
        if not self.whole or group.master is not None or acc.dtype != p.dtype:
            if member.shown is None:
                member.shown = stand_in(p, member.name)
        elif member.shown is None or isinstance(member.shown, StandIn) or not same_memory(member.shown, member.of(acc)):
            member.shown = member.of(acc).view(p.shape)
        p.grad = member.shown

    def _for_segment(self, group: FlatGroup, member: Member, piece: Tensor) -> Tensor | None:
        """What the optimizer sees; a gradient of another dtype than the weights is cast at the step (see step.py)."""
        segment = member.segment
        assert segment is not None
        if not member.holds:
            return None
        if piece.dtype != segment.dtype:
            return stand_in(segment, member.name)
        shaped = piece.view(segment.shape)
        return shaped if self.whole else part_of(shaped)

    def clear(self) -> None:
        """Drop every gradient."""
        for group in self.groups:
            for member in group.members:
                member.holds = member.kept = False
                member.shown = None
                set_grad(member.param, None)
                if member.segment is not None:
                    set_grad(member.segment, None)


def set_grad(p: nn.Parameter, grad: Tensor | None) -> None:
    """Assign `.grad` unless it is empty already."""
    if grad is not None or p.grad is not None:
        p.grad = grad
