"""Element types by short name, and their sizes in bytes.

The description of a run must not import torch, so a type is a string: `fp32`, `bf16`, `int8`. `dtype_name` also reads
what others call it: `float32`, `torch.float32`, `half`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        "fp64": 8,
        "fp32": 4,
        "bf16": 2,
        "fp16": 2,
        "fp8": 1,
        "fp8_e5m2": 1,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
        "complex64": 8,
        "complex128": 16,
    }
)
"""Bytes of one element, by short name."""

_ALIASES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e5m2": "fp8_e5m2",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
_FLOATING = frozenset({"fp64", "fp32", "bf16", "fp16", "fp8", "fp8_e5m2"})


def dtype_name(name: object) -> str:
    """Return the short name of a dtype.

    Args:
        name: A short name, an alias, or any object whose text is one, such as `torch.float32`.

    Raises:
        ValueError: If the name is unknown; the message holds the nearest known one.
    """
    if isinstance(name, str) and name in ITEMSIZE:
        return name
    text = str(name).removeprefix("torch.").removeprefix("numpy.").lower()
    text = _ALIASES.get(text, text)
    if text not in ITEMSIZE:
        near = difflib.get_close_matches(text, [*ITEMSIZE, *_ALIASES], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {' '.join(ITEMSIZE)}"
        raise ValueError(f"dtype {str(name)!r} is not known{hint}")
    return text


def itemsize(name: object) -> int:
    """Return the bytes of one element of a dtype given by any of its names."""
    return ITEMSIZE[dtype_name(name)]


def is_floating(name: object) -> bool:
    """Say whether a dtype is a real floating-point type."""
    return dtype_name(name) in _FLOATING
