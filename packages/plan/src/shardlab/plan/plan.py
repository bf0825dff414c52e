"""The plan: all that a run or a prediction depends on beside the machine. Frozen, validated, JSON both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from shardlab.plan.blocks import Batch
from shardlab.plan.dtypes import dtype_name, is_floating
from shardlab.plan.families import from_dict
from shardlab.plan.mesh import MeshShape
from shardlab.plan.model import ModelSpec
from shardlab.plan.optimizer import OptimizerSpec, optimizer_spec

SCHEMA = "shardlab.plan/1"
RECOMPUTE = ("none", "full")
_BLOCKS = ("gpt_block", "llama_block")


@dataclass(frozen=True, slots=True)
class Precision:
    """Which dtype holds what.

    Args:
        compute: Weights in forward and backward, activations, gathered parameters.
        reduce: Gradients on the wire.
        accumulate: Gradients kept until the step.
        master: What the optimizer updates, and its moments; a copy beside the weights where it differs from compute.
    """

    compute: str = "fp32"
    reduce: str = "fp32"
    accumulate: str = "fp32"
    master: str = "fp32"

    def __post_init__(self) -> None:
        for item in fields(self):
            value = dtype_name(getattr(self, item.name))
            if not is_floating(value):
                raise ValueError(f"precision.{item.name} is {value}; want a floating-point type")
            object.__setattr__(self, item.name, value)

    @classmethod
    def named(cls, name: str) -> Precision:
        """Return `fp32` (4 + 4 + 8 bytes with Adam), or `bf16` or `fp16` (2 + 2 + 12, as in the ZeRO paper).

        Raises:
            ValueError: If the name is none of these.

        Source: Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), section 3.1.
        """
        short = dtype_name(name)
        if short not in ("fp32", "bf16", "fp16"):
            raise ValueError(f"precision {name!r} is not built yet; want fp32, bf16 or fp16")
        return cls(short, short, short, "fp32")


@dataclass(frozen=True)
class Plan:
    """A run in values.

    Args:
        model: The model.
        mesh: The mesh; only dp may be larger than 1 so far.
        zero: ZeRO stage, 0 to 3.
        precision: Which dtype holds what.
        optimizer: Name of the optimizer.
        micro_batch: Samples per rank and backward pass.
        accumulation: Backward passes per step.
        seq: Tokens per sample; 1 for a model without sequences.
        recompute: `none` or `full` (every block keeps only its input).
        prefetch: Whether stage 3 starts the next unit's gather while one is computed.

    Raises:
        ValueError: If a value is out of range or a part is not built yet; the message names the field.
    """

    model: ModelSpec
    mesh: MeshShape = field(default_factory=lambda: MeshShape({"dp": 1}))
    zero: int = 0
    precision: Precision = Precision()
    optimizer: str = "adamw"
    micro_batch: int = 1
    accumulation: int = 1
    seq: int = 1
    recompute: str = "none"
    prefetch: bool = True

    def __post_init__(self) -> None:
        optimizer_spec(self.optimizer)
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero is {self.zero!r}; want 0, 1, 2 or 3")
        for name, size in self.mesh.items:
            if name != "dp" and size > 1:
                raise ValueError(f"mesh.{name} is {size}: {name} is not built yet; want 1")
        for name in ("micro_batch", "accumulation", "seq"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; want a whole number of at least 1")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute is {self.recompute!r}, which is not built yet; want {' or '.join(RECOMPUTE)}")
        if self.recompute == "full" and self.model.layers and not self.recomputed and not self.model.states_only:
            raise ValueError(f"recompute is 'full', but model {self.model.name!r} has no blocks; want 'none'")
        longest = self.model.config.get("positions") if self.model.family == "gpt" else None
        if longest is not None and self.seq > longest:
            raise ValueError(f"seq is {self.seq}, but model {self.model.name!r} has {longest} learned positions")

    @property
    def dp(self) -> int:
        """Number of data-parallel ranks."""
        return self.mesh.axis_size("dp")

    @property
    def batch(self) -> Batch:
        """The micro-batch of one rank."""
        return Batch(self.micro_batch, self.seq, self.precision.compute)

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.micro_batch * self.accumulation * self.dp

    @property
    def optimizer_spec(self) -> OptimizerSpec:
        """State of the optimizer."""
        return optimizer_spec(self.optimizer)

    @property
    def recomputed(self) -> tuple[str, ...]:
        """Names of the layers that keep only their input."""
        if self.recompute == "none":
            return ()
        return tuple(layer.name for layer in self.model.layers if layer.kind in _BLOCKS)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description that `from_dict` reads."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "mesh", "precision")}
        return {"schema": SCHEMA, "model": self.model.to_dict(), "mesh": self.mesh.sizes,
                "precision": asdict(self.precision), **plain}  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: If the schema is not ours, a key is unknown, or a value is out of range.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a plan: schema {data.get('schema')!r}, want {SCHEMA!r}")
        known = {f.name for f in fields(cls)}
        for key in data:
            if key not in known and key != "schema":
                raise ValueError(f"plan has no field {key!r}; its fields are {' '.join(sorted(known))}")
        given = {key: data[key] for key in data if key != "schema"}
        given["model"] = from_dict(given["model"])
        if "mesh" in given:
            given["mesh"] = MeshShape(given["mesh"])
        if "precision" in given:
            given["precision"] = Precision(**given["precision"])
        return cls(**given)

    def to_json(self) -> str:
        """Write the plan as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote; raises as `from_dict`."""
        return cls.from_dict(json.loads(text))
