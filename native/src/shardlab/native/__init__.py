"""Kernels in C++ and CUDA over the tensors' own memory, and a plain-torch fallback that gives the same numbers.

`sum_ranks`, `cast` and `adamw` check their arguments and take the C++ kernel for CPU tensors, the CUDA kernel for CUDA
tensors, and the fallback where neither is built. `build_info` says which, and why, without importing torch; for its
sake the kernels are imported at first use.
"""

from typing import TYPE_CHECKING, Any

from shardlab.native.build_info import BuildInfo, build_info

if TYPE_CHECKING:
    from shardlab.native.kernels import adamw, cast, sum_ranks

__all__ = ["BuildInfo", "build_info", "adamw", "cast", "sum_ranks"]


def __getattr__(name: str) -> Any:
    if name in ("adamw", "cast", "sum_ranks"):
        from shardlab.native import kernels

        return getattr(kernels, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
