"""A model as values: names, shapes, flops and saved activations of every parameter and layer.

A `ModelSpec` comes from a family constructor (`gpt`, `llama`, `mlp`), a preset name, a Hugging Face `config.json`, or a
bare parameter count. Its parameter names are those of the reference modules that can be built from it, in the order of
`named_parameters()`.

Layers are what compute actions name: the modules that directly own parameters, with a block as one layer, and the loss.
Units are what is gathered and freed together: each layer's own parameters, and each tied parameter by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, prod
from typing import Any

from shardlab.plan.dtypes import itemsize
from shardlab.plan.layout import ParamSpec


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One storage that a forward pass keeps for the backward pass.

    Args:
        name: What it is, within its layer.
        shape: Shape of the storage.
        dtype: Short dtype name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: what a compute action runs.

    Args:
        name: Module path, or `loss`.
        kind: Key of the formulas in `plan/blocks`, such as `gpt_block`.
        params: Parameters it owns; a tied parameter belongs to the first layer that has it.
        tied: Names of parameters it uses but another layer owns.
        dims: Sizes that the formulas need, by name.
    """

    name: str
    kind: str
    params: tuple[ParamSpec, ...] = ()
    tied: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Number of parameters owned."""
        return sum(param.numel for param in self.params)


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """Parameters gathered and freed together.

    Args:
        name: Path of the module, or the name of the tied parameter.
        params: The parameters.
        layers: Layers that use it, in forward order.
    """

    name: str
    params: tuple[ParamSpec, ...]
    layers: tuple[str, ...]

    def groups(self, dtype: str | None = None) -> tuple[tuple[ParamSpec, ...], ...]:
        """Return the flat groups: parameters of one dtype and one `requires_grad`, in order of first appearance.

        Args:
            dtype: Compute dtype that replaces the dtype of every parameter, or None to keep them.
        """
        found: dict[tuple[str, bool], list[ParamSpec]] = {}
        for param in self.params:
            cast = param if dtype is None else ParamSpec(param.name, param.shape, dtype, param.requires_grad)
            found.setdefault((cast.dtype, cast.requires_grad), []).append(cast)
        return tuple(tuple(group) for group in found.values())


@dataclass(frozen=True)
class ModelSpec:
    """A model: its family, the sizes it was made from, and its layers in forward order.

    Args:
        name: Preset name, file name or count.
        family: `gpt`, `llama`, `mlp` or `count`.
        config: The arguments of the family constructor, JSON-able; `from_config` makes the same spec again.
        layers: Layers in forward order; the loss is the last one, except for a bare count.
    """

    name: str
    family: str
    config: Mapping[str, Any]
    layers: tuple[LayerSpec, ...]

    def __hash__(self) -> int:
        return hash((self.name, self.family, self.layers[0].name if self.layers else "", self.numel))

    @cached_property
    def params(self) -> tuple[ParamSpec, ...]:
        """All parameters, each once, in the order of `named_parameters()`."""
        return tuple(param for layer in self.layers for param in layer.params)

    @cached_property
    def numel(self) -> int:
        """Number of parameters, each tied one counted once."""
        return sum(param.numel for param in self.params)

    @cached_property
    def buffers(self) -> tuple[ParamSpec, ...]:
        """Tensors that nobody trains and every rank holds: the rotary tables of a Llama-like model, in fp32."""
        if self.family != "llama":
            return ()
        shape = (self.config["positions"], self.config["head_dim"] // 2)
        return tuple(ParamSpec(f"rope.{name}", shape, "fp32", requires_grad=False) for name in ("cos_SE", "sin_SE"))

    @cached_property
    def tied(self) -> tuple[str, ...]:
        """Names of parameters that two or more layers use."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.tied))

    @cached_property
    def units(self) -> tuple[UnitSpec, ...]:
        """Units in registration order: tied parameters first, then each layer that owns others."""
        found = []
        for name in self.tied:
            users = tuple(
                layer.name for layer in self.layers if name in layer.tied or name in {p.name for p in layer.params}
            )
            found.append(UnitSpec(name, tuple(p for p in self.params if p.name == name), users))
        for layer in self.layers:
            own = tuple(param for param in layer.params if param.name not in self.tied)
            if own:
                found.append(UnitSpec(layer.name, own, (layer.name,)))
        return tuple(found)

    @cached_property
    def units_of(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the units that each layer uses, in registration order."""
        return {
            layer.name: tuple(unit.name for unit in self.units if layer.name in unit.layers) for layer in self.layers
        }

    def layer(self, name: str) -> LayerSpec:
        """Return a layer by name.

        Raises:
            KeyError: If there is none.
        """
        return self._by_name[name]

    def unit(self, name: str) -> UnitSpec:
        """Return a unit by name.

        Raises:
            KeyError: If there is none.
        """
        return self._unit_by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, LayerSpec]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _unit_by_name(self) -> Mapping[str, UnitSpec]:
        return {unit.name: unit for unit in self.units}

    @property
    def states_only(self) -> bool:
        """Whether only a parameter count is known: no layers, so no activations and no time."""
        return self.family == "count"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description that `from_dict` reads."""
        return {"name": self.name, "family": self.family, "config": dict(self.config)}


def count(numel: float, name: str = "", largest_layer: int = 0) -> ModelSpec:
    """Describe a model of which only the number of parameters is known.

    Args:
        numel: Number of parameters, a whole number.
        name: Name to show.
        largest_layer: Parameters of the largest layer, which stage 3 gathers; 0 if not known.

    Raises:
        ValueError: If the count is not a positive whole number.
    """
    if not isfinite(numel) or numel != int(numel) or numel < 1:
        raise ValueError(f"parameter count {numel!r} is not a positive whole number")
    layer = LayerSpec("model", "count", (ParamSpec("model.weight", (int(numel),), "fp32"),), (), {})
    config = {"numel": int(numel), "largest_layer": largest_layer}
    return ModelSpec(name or f"{numel:g}", "count", config, (layer,))
