"""One rank of many, alone: nothing moves, everything is counted.

The bytes posted are computed from the sizes that the real rounds would post, index by index; the buffers that the real
rounds allocate are allocated, as one tensor each, so that a count of memory sees them. No round makes a tensor per
rank, so that a group of thousands costs little more than a group of two. What would arrive does not: a gather repeats
the own shard, which keeps guards and finite checks meaningful when tensors hold values; a reduction keeps the own
contribution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import torch
from torch import Tensor

from shardlab.comm.base import BaseCommunicator, same_memory
from shardlab.comm.communicator import ReduceOp
from shardlab.comm.mesh import Mesh
from shardlab.comm.operation import Operation, Progress, Rounds
from shardlab.comm.record import Recorder
from shardlab.comm.reduction import split_evenly
from shardlab.comm.values import has_values, host_list, host_value
from shardlab.plan.mesh import MeshShape

__all__ = ["DryCommunicator", "DryWorld", "dry_mesh", "has_values", "host_list", "host_value"]


@dataclass
class DryRequest:
    """A round that was only counted."""

    posted: list[tuple[int, int]]

    def test(self) -> bool:
        """True: nothing is on its way."""
        return True


class DryWorld:
    """A world of ``size`` ranks of which only ``rank`` is here."""

    def __init__(self, rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"dry run: rank is {rank}, valid are 0..{size - 1}")
        self.rank, self.size, self.device = rank, size, torch.device("cpu")
        self.recorder, self.progress = Recorder(rank), Progress()
        self.meshes: dict[MeshShape, Mesh] = {}

    def mesh(self, shape: MeshShape) -> Mesh:
        """The mesh of a shape: the same one each time."""
        if shape not in self.meshes:
            self.meshes[shape] = Mesh(shape, self)
        return self.meshes[shape]

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> "DryCommunicator":
        """The group of ``ranks``, seen from this one."""
        return DryCommunicator(ranks, axes, ranks.index(self.rank), self.recorder, self.progress)


def dry_mesh(axes: Mapping[str, int], rank: int = 0) -> Mesh:
    """Be one rank of a mesh without the others.

    Args:
        axes: size by axis name, such as ``{"dp": 1024}``.
        rank: global rank to be.

    Returns:
        A mesh whose communicators count and move nothing; use it under FakeTensorMode, or with real tensors whose
        values do not matter.
    """
    shape = MeshShape(axes)
    return DryWorld(rank, shape.size).mesh(shape)


class DryCommunicator(BaseCommunicator):
    """Counts what one rank of a group posts."""

    def _to_others(self, sizes: Sequence[int] | int, item_bytes: int) -> DryRequest:
        """Count a message of ``sizes[i]`` elements to each other index i; an int is the size of all."""
        if isinstance(sizes, int):
            others = chain(range(self.index), range(self.index + 1, self.size))
            return DryRequest(list(zip(others, repeat(sizes * item_bytes), strict=False)))
        return DryRequest([(i, n * item_bytes) for i, n in enumerate(sizes) if i != self.index])

    # ---- rounds ------------------------------------------------------------------------------------------------

    def _all_reduce(self, op: ReduceOp, out: Tensor, _: Tensor) -> Rounds:
        sizes = split_evenly(out.numel(), self.size)
        yield from self._arrive(out, sizes, sizes[self.index])
        if self.size > 1:
            yield self._to_others(sizes[self.index], out.element_size())

    def _reduce_scatter(self, op: ReduceOp, out: Tensor, full: Tensor) -> Rounds:
        chunk = out.numel()
        yield from self._arrive(full, chunk, chunk)
        own = full.narrow(0, self.index * chunk, chunk)
        if not same_memory(out, own):
            out.copy_(own)

    def _arrive(self, leave: Tensor, sizes: Sequence[int] | int, own_numel: int) -> Rounds:
        """The exchange before a combination; holds the chunks that arrive until it ends."""
        chunks = leave.new_empty(own_numel * (self.size - 1))
        if self.size > 1:
            yield self._to_others(sizes, leave.element_size())
        del chunks

    def _all_gather(self, out: Tensor, shard: Tensor) -> Rounds:
        parts = out.view(self.size, shard.numel())
        if not same_memory(parts[self.index], shard):
            parts[self.index].copy_(shard)
        parts[: self.index].copy_(shard)
        parts[self.index + 1 :].copy_(shard)
        if self.size > 1:
            yield self._to_others(shard.numel(), shard.element_size())

    def _all_to_all(self, out_numels: list[int], in_numels: list[int], out: Tensor, inp: Tensor) -> Rounds:
        to, source = sum(out_numels[: self.index]), sum(in_numels[: self.index])
        own = in_numels[self.index]
        out.narrow(0, to, own).copy_(inp.narrow(0, source, own))
        if self.size > 1:
            yield self._to_others(in_numels, inp.element_size())

    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> DryRequest:
        return self._to_others([x.numel() for x in leave], leave[0].element_size())

    def _gather(self, parts: list[Tensor], second: bool) -> DryRequest:
        return self._to_others(parts[self.index].numel(), parts[self.index].element_size())

    def _broadcast(self, x: Tensor, src_index: int) -> DryRequest:
        return self._to_others(x.numel(), x.element_size()) if src_index == self.index else DryRequest([])

    def _barrier(self, name: str) -> DryRequest:
        return DryRequest([])

    def _send(self, x: Tensor, dst_index: int, tag: int) -> DryRequest:
        return DryRequest([(dst_index, x.numel() * x.element_size())])

    def _recv(self, x: Tensor, src_index: int, tag: int) -> DryRequest:
        return DryRequest([])

    def block_until_finished(self, op: Operation) -> None:
        """Finish ``op``: nothing is on its way."""
        while not op.test():
            pass
