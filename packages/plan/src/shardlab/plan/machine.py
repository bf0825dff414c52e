"""What the hardware can do. Every number says where it comes from: `measured`, `data sheet` or `assumed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SOURCES = ("measured", "data sheet", "assumed")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its source.

    Args:
        value: The number, in the unit that the field's name states.
        source: `measured`, `data sheet` or `assumed`.
        url: Where it can be read; needed unless it is assumed or was measured here.
        note: What the source says beside the number, or why it is assumed.
    """

    value: float
    source: str
    url: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source {self.source!r}: want one of {', '.join(SOURCES)}")
        if self.source == "data sheet" and not self.url:
            raise ValueError(f"a data-sheet figure ({self.value:g}) needs the url of its source")
        if self.source == "assumed" and not self.note:
            raise ValueError(f"an assumed figure ({self.value:g}) needs a note that says why")
        if not self.value > 0:
            raise ValueError(f"a figure of a machine is positive, not {self.value!r}")


@dataclass(frozen=True, slots=True)
class Link:
    """A link between devices.

    Args:
        bytes_per_s: Bandwidth per direction; between nodes that of a whole node.
        latency_s: Time of one hop.
    """

    bytes_per_s: Figure
    latency_s: Figure


@dataclass(frozen=True)
class Machine:
    """A device and how it is connected.

    Args:
        name: Name on the command line.
        title: Name of the product.
        memory_bytes: Memory of one device; of the whole machine where `shared`.
        memory_bytes_per_s: Its bandwidth.
        peak_flops_per_s: Peak rate of matrix products by dtype.
        matmul_fraction: Share of the peak that large matrix products reach.
        devices_per_node: Devices in a node.
        intra_node: Link between devices of a node.
        inter_node: Link between nodes.
        shared: Whether the ranks of a node share one memory and one set of cores, as CPU ranks do.
    """

    name: str
    title: str
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    peak_flops_per_s: Mapping[str, Figure]
    matmul_fraction: Figure
    devices_per_node: Figure
    intra_node: Link
    inter_node: Link
    shared: bool = False

    def capacity_bytes(self, ranks_per_node: int) -> int:
        """Return the memory that one rank may use."""
        return int(self.memory_bytes.value) // (ranks_per_node if self.shared else 1)

    def share(self, ranks_per_node: int) -> int:
        """Return over how many ranks cores and memory bandwidth are split."""
        return ranks_per_node if self.shared else 1

    def figures(self) -> dict[str, Figure]:
        """Return every number by the name of its field."""
        found = {"memory_bytes": self.memory_bytes, "memory_bytes_per_s": self.memory_bytes_per_s}
        found |= {f"peak_flops_per_s.{dtype}": figure for dtype, figure in self.peak_flops_per_s.items()}
        found |= {"matmul_fraction": self.matmul_fraction, "devices_per_node": self.devices_per_node}
        for name, link in (("intra_node", self.intra_node), ("inter_node", self.inter_node)):
            found |= {f"{name}.bytes_per_s": link.bytes_per_s, f"{name}.latency_s": link.latency_s}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description that `from_dict` reads."""
        return {**asdict(self), "peak_flops_per_s": {k: asdict(v) for k, v in self.peak_flops_per_s.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Read a machine.

        Raises:
            ValueError: If a field is missing or unknown, or a number has no valid source.
        """
        try:
            return cls(
                name=data["name"],
                title=data["title"],
                memory_bytes=Figure(**data["memory_bytes"]),
                memory_bytes_per_s=Figure(**data["memory_bytes_per_s"]),
                peak_flops_per_s={dtype: Figure(**figure) for dtype, figure in data["peak_flops_per_s"].items()},
                matmul_fraction=Figure(**data["matmul_fraction"]),
                devices_per_node=Figure(**data["devices_per_node"]),
                intra_node=_link(data["intra_node"]),
                inter_node=_link(data["inter_node"]),
                shared=data.get("shared", False),
            )
        except KeyError as error:
            raise ValueError(f"machine {data.get('name', '?')!r} has no field {error}") from None
        except TypeError as error:
            raise ValueError(f"machine {data.get('name', '?')!r}: {error}") from None


def _link(data: Mapping[str, Any]) -> Link:
    return Link(Figure(**data["bytes_per_s"]), Figure(**data["latency_s"]))
