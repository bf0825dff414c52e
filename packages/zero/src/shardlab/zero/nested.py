"""Find the tensors in what modules take and return."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

__all__ = ["differentiable", "tensors"]


def differentiable(tree: Any) -> list[Tensor]:
    """The tensors of a nested structure through which a gradient will come."""
    return [x for x in tensors(tree) if x.requires_grad and not isinstance(x, nn.Parameter)]


def tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, mappings and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from tensors(x)
    elif isinstance(tree, (list, tuple)):
        for x in tree:
            yield from tensors(x)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for item in fields(tree):
            yield from tensors(getattr(tree, item.name))
