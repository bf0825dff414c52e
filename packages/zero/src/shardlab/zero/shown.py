"""What the user sees where a gradient would be.

A rank's part of a gradient looks like a gradient: torch's own clip_grad_norm_ would take the norm of the part and scale
each rank by another factor, without a word. So parts are a Tensor subclass that refuses norms, and a parameter whose
gradient is sharded shows a stand-in that refuses everything.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shardlab.zero.freed import placeholder

__all__ = ["GradPart", "ShardedGradError", "StandIn", "part_of", "stand_in"]


class ShardedGradError(RuntimeError):
    """Something was asked of a part of a gradient that only the whole can answer."""


_NORMS = (
    *(
        "norm",
        "linalg_norm",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "vector_norm",
        "matrix_norm",
        "frobenius_norm",
    ),
    *("nuclear_norm", "_foreach_norm", "dist", "renorm"),
)
_HARMLESS = (
    "__get__",
    "size",
    "dim",
    "numel",
    "nelement",
    "is_floating_point",
    "is_complex",
    "__repr__",
    "element_size",
)


class GradPart(Tensor):
    """This rank's 1-D piece of a gradient; an optimizer may use it like any tensor, a norm of it raises."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch._amp_foreach_non_finite_check_and_unscale_:
            raise ShardedGradError(
                "GradScaler: each rank would look for overflow in its own part of the gradients and skip a step alone. "
                "bf16 needs no loss scale; a step with gradients that are not finite is skipped on all ranks anyway"
            )
        if getattr(func, "__name__", "") in _NORMS:
            raise ShardedGradError(
                f"{func.__name__} of a part of a gradient: each rank holds another part, so this would differ "
                "between ranks. "
                "Use shardlab.zero.clip_grad_norm_(optimizer, max_norm), which returns the norm of the whole gradient"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class StandIn(Tensor):
    """Stands where `param.grad` was; raises on use, naming the accessor. `param.grad = None` clears the gradient."""

    param_name: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        called = getattr(func, "__name__", str(func))
        if called in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        name = next((x.__dict__.get("param_name", "?") for x in flat if isinstance(x, StandIn)), "?")
        raise ShardedGradError(
            f"{called}: the gradient of parameter {name!r} is sharded over ranks. Read it with "
            f"shardlab.zero.inspect(model, {name!r}, 'grad'), clip with "
            "shardlab.zero.clip_grad_norm_(optimizer, max_norm)"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"sharded gradient of {self.__dict__.get('param_name', '?')!r}"


def part_of(piece: Tensor) -> Tensor:
    """``piece`` as a GradPart over the same memory."""
    return _made(piece, GradPart)


def stand_in(like: Tensor, name: str) -> Tensor:
    """A gradient that holds nothing, of the shape and dtype of parameter ``like``. Cost: one element."""
    shown = _made(placeholder(like), StandIn)
    shown.param_name = name  # type: ignore[attr-defined]
    return shown


def _made(x: Tensor, kind: type[Tensor]) -> Tensor:
    """``x`` as an instance of ``kind``; a tensor that is of a subclass already, such as a fake one, of both classes."""
    if type(x) is Tensor:
        return x.as_subclass(kind)
    x.__class__ = _both(kind, type(x))
    return x


@functools.cache
def _both(kind: type, other: type) -> type:
    return type(kind.__name__, (kind, other), {})
