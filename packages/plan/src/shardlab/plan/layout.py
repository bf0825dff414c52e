"""Where each parameter lies in one flat buffer that is cut into equal shards.

    |<---- shard 0 ---->|<---- shard 1 ---->|<---- shard 2 ---->|
    |aaaaaaaaaaaa..|bbbbbbbbbbbbbbbbb....|cccccccc...............|
                 ^ padding: every parameter starts on a 64-byte line

The alignment is for bits, not for speed alone: a matrix-vector product changes its bits with the address of the weight.
Runtime, simulator and checkpoint all read offsets and shard ranges here, so they cannot disagree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from shardlab.plan.dtypes import dtype_name, itemsize
from shardlab.plan.units import round_up


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """Name, shape and dtype of one parameter.

    Args:
        name: The name in `named_parameters()`.
        shape: Global shape; `()` is a scalar.
        dtype: Short dtype name or an alias; stored short.
        requires_grad: Whether it is trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        if any(size < 0 for size in self.shape):
            raise ValueError(f"parameter {self.name!r}: shape {self.shape} has a negative size")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.numel * itemsize(self.dtype)


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one parameter that lies in one shard.

    Args:
        name: The parameter.
        start: First element, in the flattened parameter.
        stop: One past the last element, in the flattened parameter.
        flat_start: Where the piece begins in the full flat buffer, in elements.
    """

    name: str
    start: int
    stop: int
    flat_start: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """A flat buffer of parameters of one dtype, cut into `shards` equal shards that are disjoint and cover it.

    Made by `Layout.of`. All sizes are in elements unless the name says bytes.
    """

    specs: tuple[ParamSpec, ...]
    shards: int
    align: int
    shard_numel: int
    _offsets: dict[str, int] = field(repr=False, compare=False)
    _starts: tuple[int, ...] = field(repr=False, compare=False)
    _solid: tuple[ParamSpec, ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, specs: Iterable[ParamSpec], shards: int, align_bytes: int = 64) -> Layout:
        """Lay parameters out in the order given.

        Args:
            specs: Parameters of one dtype, names unique, at least one.
            shards: Number of equal shards, at least 1.
            align_bytes: Every parameter and every shard starts on a multiple of this many bytes.

        Raises:
            ValueError: If dtypes differ, a name occurs twice, or a size is out of range.
        """
        specs = tuple(specs)
        align = _check(specs, shards, align_bytes)
        offsets: dict[str, int] = {}
        end = cursor = 0
        for spec in specs:
            offsets[spec.name] = cursor
            if spec.numel:
                end = cursor + spec.numel
                cursor = round_up(end, align)
        solid = tuple(spec for spec in specs if spec.numel)
        starts = tuple(offsets[spec.name] for spec in solid)
        return cls(specs, shards, align, round_up(-(-end // shards), align), offsets, starts, solid)

    @property
    def dtype(self) -> str:
        """The one dtype of the buffer."""
        return self.specs[0].dtype

    @property
    def numel(self) -> int:
        """Elements of the flat buffer, padding included."""
        return self.shards * self.shard_numel

    @property
    def nbytes(self) -> int:
        """Bytes of the flat buffer, padding included."""
        return self.numel * itemsize(self.dtype)

    @property
    def shard_nbytes(self) -> int:
        """Bytes of one shard, padding included."""
        return self.shard_numel * itemsize(self.dtype)

    @property
    def param_numel(self) -> int:
        """Elements of the parameters alone."""
        return sum(spec.numel for spec in self.specs)

    @property
    def pad_numel(self) -> int:
        """Elements of the flat buffer that belong to no parameter."""
        return self.numel - self.param_numel

    @property
    def pad_bytes(self) -> int:
        """Bytes of the flat buffer that belong to no parameter."""
        return self.pad_numel * itemsize(self.dtype)

    def offset(self, name: str) -> int:
        """Return where a parameter starts in the flat buffer, in elements.

        Raises:
            KeyError: If the layout has no such parameter.
        """
        return self._offsets[name]

    def pieces(self, index: int) -> tuple[Piece, ...]:
        """Return what lies in one shard, in flat order; empty parameters appear in none.

        Args:
            index: The shard, 0 to shards - 1.

        Raises:
            IndexError: If there is no such shard.
        """
        if not 0 <= index < self.shards:
            raise IndexError(f"shard {index} is outside 0..{self.shards - 1}")
        low, high = index * self.shard_numel, (index + 1) * self.shard_numel
        first = max(bisect_right(self._starts, low) - 1, 0)
        found = []
        for at in range(first, bisect_left(self._starts, high)):
            begin, spec = self._starts[at], self._solid[at]
            start, stop = max(low - begin, 0), min(high - begin, spec.numel)
            if start < stop:
                found.append(Piece(spec.name, start, stop, begin + start))
        return tuple(found)


def _check(specs: tuple[ParamSpec, ...], shards: int, align_bytes: int) -> int:
    """Check the arguments of `Layout.of` and return the alignment in elements."""
    if not specs:
        raise ValueError("a layout needs at least one parameter")
    if shards < 1:
        raise ValueError(f"a layout needs at least one shard, not {shards}")
    seen: set[str] = set()
    for spec in specs:
        if spec.dtype != specs[0].dtype:
            raise ValueError(
                f"parameter {spec.name!r} is {spec.dtype} but {specs[0].name!r} is {specs[0].dtype}: "
                "a flat buffer has one dtype, so make one layout per dtype"
            )
        if spec.name in seen:
            raise ValueError(f"parameter {spec.name!r} occurs twice in one layout")
        seen.add(spec.name)
    size = itemsize(specs[0].dtype)
    if align_bytes < 1 or align_bytes % size:
        raise ValueError(
            f"align_bytes {align_bytes} is not a positive multiple of the {size} bytes of {specs[0].dtype}"
        )
    return align_bytes // size
