"""What a parameter is while its values are elsewhere.

A sharded parameter keeps its identity, shape, dtype and `requires_grad`, owns no bytes, and is an instance of a
subclass of its own type that raises, by name, on every touch of its values. The other way to free a parameter, resizing
its storage to zero, turns a stray read into a segmentation fault.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from shardlab.comm.values import has_values

__all__ = ["FreedParameterError", "freed_type", "placeholder"]

_READABLE = (
    *("shape", "dtype", "device", "layout", "ndim", "names", "is_leaf", "is_cpu", "is_cuda", "is_meta", "is_nested"),
    *(
        "is_sparse",
        "nbytes",
        "itemsize",
        "is_quantized",
        "requires_grad",
        "grad",
        "grad_fn",
        "grad_dtype",
        "output_nr",
        "_version",
    ),
    *("_backward_hooks", "_post_accumulate_grad_hooks"),
)
_CALLABLE = (
    *("size", "dim", "ndimension", "numel", "nelement", "__len__", "element_size", "is_floating_point", "is_complex"),
    *("is_signed", "get_device", "requires_grad_", "register_hook", "register_post_accumulate_grad_hook"),
)


class FreedParameterError(RuntimeError):
    """The values of a sharded parameter were touched while they are not here."""


def _harmless() -> frozenset[Any]:
    """What may be asked of a parameter without its values."""
    found: set[Any] = {torch.is_floating_point, torch.is_complex, torch.numel}
    for name in _READABLE:
        if (attribute := getattr(Tensor, name, None)) is not None:
            found.add(attribute.__get__)
    found |= {getattr(Tensor, name).__set__ for name in ("grad", "requires_grad")}
    found |= {method for name in _CALLABLE if (method := getattr(Tensor, name, None)) is not None}
    return frozenset(found)


_HARMLESS = _harmless()


@functools.cache
def freed_type(kind: type) -> type:
    """The subclass of ``kind`` whose instances raise when their values are touched.

    It must derive from the parameter's own type: swapping a FakeTensor for an unrelated class ends the process.
    """

    def torch_function(
        cls: type,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        names = ", ".join(repr(_name(x)) for x in _freed_among(args, kwargs or {}))
        called = getattr(func, "__name__", str(func))
        if called in ("__get__", "__set__"):
            called = getattr(func, "__self__", func).__name__
        raise FreedParameterError(
            f"{called}: parameter {names} is sharded and its values are not on this rank now. Read it inside "
            f"`with shardlab.zero.gathered(model, {names}):`, entered by every rank (state_dict and torch.save: "
            "`gathered(model)`). If a module's forward reads a parameter of another module, pass units= to shard so "
            "that both are in one unit"
        )

    def describe(self: Any, **_: Any) -> str:
        return f"Parameter {_name(self)!r} of shape {tuple(self.shape)}, {self.dtype}: sharded, values not here now"

    def formatted(self: Any, spec: str) -> Any:
        return describe(self) if not spec else Tensor.__format__(self, spec)  # type: ignore[no-untyped-call]

    namespace = {"__torch_function__": classmethod(torch_function), "__repr__": describe, "__format__": formatted}
    return type(f"Freed{kind.__name__}", (kind,), namespace)


def _freed_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for x in (*args, *kwargs.values()):
        if isinstance(x, (list, tuple)):
            yield from _freed_among(tuple(x), {})
        elif type(x).__name__.startswith("Freed") and isinstance(x, Tensor):
            yield x


def _name(p: Any) -> str:
    info = p.__dict__.get("shardlab_info")
    return info.name if info is not None else "?"


def placeholder(like: Tensor) -> Tensor:
    """A tensor of the shape of ``like`` over a single element. Cost: one element.

    A few functions in C, such as torch.tensor(p), ask no subclass and read it: they find NaN, or the largest integer.
    """
    if not has_values(like):
        return torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        value = math.nan
    else:
        value = True if like.dtype is torch.bool else torch.iinfo(like.dtype).max
    return torch.full((), value, dtype=like.dtype, device=like.device).expand(like.shape)
