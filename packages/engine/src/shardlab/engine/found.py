"""What is found on this machine: versions of packages, MPI, compilers, CUDA. Nothing here imports torch or MPI.

A program is looked for on PATH and in the places where it usually is; a program that is missing, hangs or answers
with an error is "not found", never an exception: this code runs on machines where things are broken.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = [
    "compiler",
    "cuda_compiler",
    "gpu",
    "mpi_launcher",
    "package_file",
    "requirements",
    "torch_cuda",
    "version",
    "version_at_least",
]

_PROGRAM_TIMEOUT_S = 2.0  # five programs at most: the report stays under ten seconds whatever they do


def version(distribution: str) -> str | None:
    """Look up an installed distribution.

    Args:
        distribution: its name.

    Returns:
        The version; None if it is not installed.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_at_least(found: str, bound: str) -> bool:
    """Compare release numbers, leaving out local and pre-release parts.

    Args:
        found: such as "2.13.0+cpu".
        bound: such as "2.13".

    Returns:
        Whether found is bound or later.
    """
    release = [[int(part) for part in re.findall(r"\d+", text.split("+")[0])] for text in (found, bound)]
    return release[0] >= release[1]


def requirements(distribution: str) -> dict[str, str]:
    """Read what an installed distribution requires, extras left out.

    Args:
        distribution: its name.

    Returns:
        Name to lowest version ("" for any); empty if the distribution is not installed.
    """
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        match = re.match(r"([A-Za-z0-9._-]+)(?:>=([0-9.]+))?", requirement.strip())
        if match and "extra" not in marker:
            found[match[1]] = match[2] or ""
    return found


def package_file(package: str) -> Path | None:
    """Find the `__init__.py` of `shardlab.<package>` without importing it.

    Args:
        package: last part of the name.

    Returns:
        The path; None if the package is not installed.
    """
    try:
        spec = importlib.util.find_spec(f"shardlab.{package}")
    except ImportError:
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin)


def torch_cuda() -> str | None:
    """Read for which CUDA the installed torch was built.

    Returns:
        The CUDA version; None for a CPU build, or if torch is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def mpi_launcher() -> tuple[str, str] | None:
    """Find mpirun, first beside this Python.

    Returns:
        Path and a line with name and version; None if there is none that answers.
    """
    for path in (shutil.which("mpirun", path=str(Path(sys.executable).parent)), shutil.which("mpirun")):
        text = _answer(path, "--version")
        if path is None or text is None:
            continue
        if match := re.search(r"\(Open MPI\)\s*(\S+)", text):
            return path, f"Open MPI {match[1]}"
        if match := re.search(r"Version:\s*(\S+)", text):
            return path, f"MPICH (Hydra) {match[1]}"
        return path, text.splitlines()[0] if text else "unknown MPI"
    return None


def compiler() -> tuple[str, str] | None:
    """Find a C++ compiler: what CXX names, else c++, g++ or clang++.

    Returns:
        Path and first line of its version; None if there is none that answers.
    """
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        text = _answer(path, "--version")
        if path is not None and text:
            return path, text.splitlines()[0]
    return None


def cuda_compiler() -> tuple[str, str] | None:
    """Find nvcc: under CUDA_HOME, on PATH, or in /usr/local/cuda.

    Returns:
        Path and release; None if there is none that answers.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [str(Path(home) / "bin" / "nvcc")] if home else []
    for candidate in [*candidates, "nvcc", "/usr/local/cuda/bin/nvcc"]:
        path = shutil.which(candidate)
        text = _answer(path, "--version")
        if path is not None and text is not None:
            match = re.search(r"release ([0-9.]+)", text)
            return path, f"nvcc {match[1]}" if match else "nvcc of unknown release"
    return None


def gpu() -> str | None:
    """Ask the driver for its devices.

    Returns:
        Names of the devices and the driver's version; None without a working driver.
    """
    text = _answer(shutil.which("nvidia-smi"), "--query-gpu=name,driver_version", "--format=csv,noheader")
    return "; ".join(text.splitlines()) if text else None


def _answer(path: str | None, *arguments: str) -> str | None:
    """Output of a program; None if it is missing, fails or takes too long."""
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
