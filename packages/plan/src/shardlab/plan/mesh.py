"""Ranks as points of a grid with named axes: arithmetic only, no connection is opened.

The order is fixed: pp slowest, then dp, cp, and tp fastest, so that tensor-parallel neighbours are neighbours in the
machine. `ep` is the inner factor of dp: the dp ranks that hold different experts of one copy of the model; what is left
of dp is `edp`, the copies of one expert. Other axes are allowed; they are slower than pp, in the order given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

ORDER = ("pp", "dp", "cp", "tp")
"""The named axes, slowest first."""


@dataclass(frozen=True, init=False)
class MeshShape:
    """Axis names and sizes, and the bijection between ranks and coordinates.

    Args:
        axes: Size by axis name, such as `{"dp": 4, "tp": 2}`; an absent axis has size 1.

    Raises:
        ValueError: If a size is below 1, or ep does not divide dp.
    """

    items: tuple[tuple[str, int], ...]
    _factors: tuple[tuple[str, int], ...]

    def __init__(self, axes: Mapping[str, int]) -> None:
        for name, size in axes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"mesh axis {name!r} has size {size!r}; want a whole number of at least 1")
        if "edp" in axes:
            raise ValueError("mesh axis 'edp' is dp / ep: give dp and ep")
        ep, dp = axes.get("ep", 1), axes.get("dp", 1)
        if dp % ep:
            raise ValueError(f"mesh axis 'ep' is an inner factor of dp: ep {ep} does not divide dp {dp}")
        custom = [name for name in axes if name not in ORDER and name != "ep"]
        names = [*custom, *(name for name in ORDER if name in axes)]
        factors: list[tuple[str, int]] = []
        for name in names:
            factors += [("edp", dp // ep), ("ep", ep)] if name == "dp" else [(name, axes[name])]
        ordered = [(name, axes[name]) for name in [*names, *(["ep"] if "ep" in axes else [])]]
        object.__setattr__(self, "items", tuple(ordered))
        object.__setattr__(self, "_factors", tuple(factors))

    def __repr__(self) -> str:
        return "MeshShape(" + " x ".join(f"{name} {size}" for name, size in self.items) + ")"

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names, slowest first; ep, which is inside dp, comes last."""
        return tuple(name for name, _ in self.items)

    @property
    def sizes(self) -> dict[str, int]:
        """Size by axis name."""
        return dict(self.items)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self._factors)

    def axis_size(self, *axes: str) -> int:
        """Return the size of the group over one or several axes; an absent axis counts 1."""
        inside = _expand(axes)
        return prod(size for name, size in self._factors if name in inside)

    def coords(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on every axis, ep included.

        Raises:
            ValueError: If there is no such rank.
        """
        fine = self._fine(rank)
        found = {name: fine[name] for name, _ in self.items if name not in ("dp", "ep")}
        if "dp" in self.axes:
            found["dp"] = fine["edp"] * self.axis_size("ep") + fine["ep"]
        if "ep" in self.axes:
            found["ep"] = fine.get("ep", 0)
        return {name: found[name] for name in self.axes}

    def rank(self, coords: Mapping[str, int]) -> int:
        """Return the rank at a coordinate; an axis left out counts 0, and ep, if given, must agree with dp.

        Raises:
            ValueError: If an axis is unknown, a coordinate is out of range, or ep contradicts dp.
        """
        sizes, found = self.sizes, 0
        for name, at in coords.items():
            if name not in sizes:
                raise ValueError(f"mesh has no axis {name!r}; its axes are {' '.join(self.axes) or '(none)'}")
            if not 0 <= at < sizes[name]:
                raise ValueError(f"coordinate {at} on axis {name!r} is outside 0..{sizes[name] - 1}")
        ep = sizes.get("ep", 1)
        if "ep" in coords and coords.get("dp", 0) % ep != coords["ep"]:
            raise ValueError(f"coordinate ep {coords['ep']} contradicts dp {coords.get('dp', 0)} with ep size {ep}")
        for name, size in self.items:
            if name != "ep":
                found = found * size + coords.get(name, 0)
        return found

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` along the given axes only, ascending.

        Args:
            rank: A member of the group.
            axes: One or several axis names, `edp` included; an absent axis makes no difference.
        """
        return self._members(self._fine(rank), _expand(axes))

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Return all groups over the given axes, ordered by their first rank; each rank is in exactly one."""
        inside = _expand(axes)
        fixed = [range(1 if name in inside else size) for name, size in self._factors]
        names = [name for name, _ in self._factors]
        return tuple(self._members(dict(zip(names, at, strict=True)), inside) for at in product(*fixed))

    def _members(self, fine: Mapping[str, int], inside: frozenset[str]) -> tuple[int, ...]:
        spans = [range(size) if name in inside else (fine[name],) for name, size in self._factors]
        return tuple(self._flatten(at) for at in product(*spans))

    def _flatten(self, at: tuple[int, ...]) -> int:
        rank = 0
        for (_, size), place in zip(self._factors, at, strict=True):
            rank = rank * size + place
        return rank

    def _fine(self, rank: int) -> dict[str, int]:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is outside 0..{self.size - 1}")
        return dict(self._digits(rank))

    def _digits(self, rank: int) -> Iterator[tuple[str, int]]:
        for name, size in reversed(self._factors):
            rank, place = divmod(rank, size)
            yield name, place


def _expand(axes: tuple[str, ...]) -> frozenset[str]:
    """Return the independent factors behind axis names: dp is edp and ep."""
    return frozenset(axes) | ({"edp", "ep"} if "dp" in axes else frozenset())
