"""What was built, and why not what was not; needs neither torch nor a working build."""

import importlib
from dataclasses import dataclass

__all__ = ["BuildInfo", "build_info"]


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The state of the compiled modules of this installation.

    Args:
        core: whether the C++ module can be imported.
        core_reason: why it cannot, and what to do; empty if it can.
        isa: the instruction set in use, such as "avx2"; empty without the module.
        variants: the instruction sets that were built.
        openmp: whether the C++ kernels share their work among threads.
        compiler: name and version of the C++ compiler.
        cuda: whether the CUDA module can be imported; a GPU may still be absent.
        cuda_reason: why it cannot; empty if it can.
        cuda_compiler: version of the CUDA compiler and the GPU architectures.
    """

    core: bool
    core_reason: str
    isa: str
    variants: tuple[str, ...]
    openmp: bool
    compiler: str
    cuda: bool
    cuda_reason: str
    cuda_compiler: str


def build_info() -> BuildInfo:
    """Say what is built by importing it.

    Returns:
        The state of `_core` and `_cuda`; an import error of theirs becomes a reason, never an exception.
    """
    try:
        from shardlab.native import _build
    except ImportError:
        reason = "shardlab.native was not installed through CMake: pip install ./native, or make native"
        return BuildInfo(False, reason, "", (), False, "", False, reason, "")
    core_reason = _build.CORE_REASON or _import_error("_core")
    isa, openmp = "", False
    if not core_reason:
        from shardlab.native import _core

        isa, openmp = _core.isa, _core.openmp
    cuda_reason = _build.CUDA_REASON or _import_error("_cuda")
    return BuildInfo(
        core=not core_reason,
        core_reason=core_reason,
        isa=isa,
        variants=tuple(_build.CORE_VARIANTS.split()),
        openmp=openmp,
        compiler=_build.CORE_COMPILER,
        cuda=not cuda_reason,
        cuda_reason=cuda_reason,
        cuda_compiler=_build.CUDA_COMPILER,
    )


def _import_error(module: str) -> str:
    # pybind11 turns a C++ exception at load, such as a wrong SHARDLAB_ISA, into ImportError with its text as the cause.
    try:
        importlib.import_module(f"shardlab.native.{module}")
    except ImportError as error:
        return f"{module} was built but cannot be imported: {error.__cause__ or error}"
    return ""
