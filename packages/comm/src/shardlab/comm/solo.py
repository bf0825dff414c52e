"""A world of one rank, and groups of one rank in any world: every collective is a copy or nothing at all."""

from typing import NoReturn

import torch
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.communicator import Communicator
from shardlab.comm.mesh import Mesh
from shardlab.comm.operation import Operation, Progress, Request
from shardlab.comm.record import Recorder
from shardlab.plan.mesh import MeshShape

__all__ = ["SoloCommunicator", "SoloWorld"]


class SoloCommunicator(BaseCommunicator):
    """A group of one; posts nothing, since the base class posts rounds only to other ranks."""

    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> Request:
        self._unreachable()

    def _gather(self, parts: list[Tensor], second: bool) -> Request:
        self._unreachable()

    def _broadcast(self, x: Tensor, src_index: int) -> Request:
        self._unreachable()

    def _barrier(self, name: str) -> Request:
        self._unreachable()

    def _send(self, x: Tensor, dst_index: int, tag: int) -> Request:
        self._unreachable()

    def _recv(self, x: Tensor, src_index: int, tag: int) -> Request:
        self._unreachable()

    def block_until_finished(self, op: Operation) -> None:
        if not op.test():
            self._unreachable()

    def _unreachable(self) -> NoReturn:
        raise AssertionError(f"{self} has one rank and posts no messages")


class SoloWorld:
    """The world of a process that was started alone."""

    def __init__(self) -> None:
        self.rank, self.size, self.device = 0, 1, torch.device("cpu")
        self.recorder = Recorder(rank=0)
        self.meshes: dict[MeshShape, Mesh] = {}
        self._progress = Progress()

    def mesh(self, shape: MeshShape) -> Mesh:
        """The mesh of a shape: the same one each time."""
        if shape not in self.meshes:
            self.meshes[shape] = Mesh(shape, self)
        return self.meshes[shape]

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> Communicator:
        """The group of this one rank."""
        return SoloCommunicator(ranks, axes, 0, self.recorder, self._progress)
