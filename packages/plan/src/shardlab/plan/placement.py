"""How one parameter lies along each mesh axis, and the record that travels on the parameter itself.

Norms, checkpoints and gradient reductions read `p.shardlab_info` and nothing else, so a package that splits a parameter
says so here and the others need not know the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """The parameter is cut along a dim over an axis.

    Args:
        axis: Mesh axis.
        dim: Dim that is cut.
        blocks: Equal blocks along the dim that are each cut by themselves; 3 for a fused query-key-value matrix, whose
            rank then holds a part of each of the three.
    """

    axis: str
    dim: int
    blocks: int = 1

    def ranges(self, length: int, size: int, index: int) -> tuple[tuple[int, int], ...]:
        """Return the (start, stop) ranges along the dim that one member holds, one per block.

        Args:
            length: Global length of the dim.
            size: Members of the axis.
            index: The member.

        Raises:
            ValueError: If blocks x size does not divide the length.
        """
        if length % (self.blocks * size):
            raise ValueError(
                f"dim {self.dim} of length {length} cannot be cut over axis {self.axis!r} of size {size}: "
                f"{length} is not divisible by {self.blocks} x {size}"
            )
        block, part = length // self.blocks, length // self.blocks // size
        return tuple((at * block + index * part, at * block + (index + 1) * part) for at in range(self.blocks))


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every member of the axis holds the whole, with equal values."""

    axis: str


@dataclass(frozen=True, slots=True)
class Partial:
    """Every member holds a summand; the value is the sum over the axis."""

    axis: str


Placement = Shard | Replicate | Partial


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """What is carried on a parameter as `p.shardlab_info`.

    Args:
        name: Global name.
        placements: At most one per axis; an axis not mentioned replicates.
        tie: Name of the tie group, or None.
        expert: Whether it belongs to a routed expert.
    """

    name: str
    placements: tuple[Placement, ...] = ()
    tie: str | None = None
    expert: bool = False

    def __post_init__(self) -> None:
        axes = [placement.axis for placement in self.placements]
        for axis in axes:
            if axes.count(axis) > 1:
                raise ValueError(f"parameter {self.name!r} has two placements on axis {axis!r}")

    def along(self, axis: str) -> Placement:
        """Return the placement on an axis; one that is not mentioned replicates."""
        for placement in self.placements:
            if placement.axis == axis:
                return placement
        return Replicate(axis)


def local_shape(shape: tuple[int, ...], placements: tuple[Placement, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape that one rank holds of a parameter.

    Args:
        shape: Global shape.
        placements: Its placements.
        sizes: Size by axis; an absent axis counts 1.

    Raises:
        ValueError: If a dim does not exist or is not divisible.
    """
    local = list(shape)
    for placement in placements:
        if isinstance(placement, Shard):
            if not 0 <= placement.dim < len(shape):
                raise ValueError(f"axis {placement.axis!r} cuts dim {placement.dim}, but the shape is {shape}")
            ranges = placement.ranges(local[placement.dim], sizes.get(placement.axis, 1), 0)
            local[placement.dim] = sum(stop - start for start, stop in ranges)
    return tuple(local)
