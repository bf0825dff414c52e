"""`shardlab report`: what is built, found and missing on this machine, and how to mend it.

The report is a value; text and JSON are two ways to print it. It must come out on a broken machine, so it imports
neither torch nor MPI, and a part that is missing is a line, not an exception.
"""

import ast
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from shardlab.engine import found

__all__ = ["Line", "Report", "collect", "report"]

_SCHEMA = "shardlab.report/1"
_PACKAGES = ("plan", "comm", "zero", "pipeline", "tensorpar", "offload", "engine", "native", "sim")
_ROOTS = ("shardlab", "shardlab-engine")  # one of them is installed: the whole, or the package alone
_NOT_BUILT_YET = "Not built yet"  # how the docstring of a package that is still to be written begins


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked for.

    Args:
        section: the heading it stands under.
        name: what was looked for.
        state: "ok"; "missing" or "not built" (does without it); "broken" (required, and missing or too old).
        detail: version, path or reason.
        mend: what to do; empty if there is nothing to do.
    """

    section: str
    name: str
    state: str
    detail: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, in the order of printing."""

    lines: tuple[Line, ...]

    @property
    def broken(self) -> tuple[Line, ...]:
        """The lines that keep shardlab from working."""
        return tuple(line for line in self.lines if line.state == "broken")

    def to_json(self) -> str:
        """Print as one JSON object with schema, verdict, inputs, result and assumptions.

        Returns:
            The text; `result` has a list of lines for each section.
        """
        result: dict[str, list[dict[str, str]]] = {}
        for line in self.lines:
            fields = asdict(line)
            result.setdefault(fields.pop("section"), []).append(fields)
        verdict = "broken" if self.broken else "ok"
        whole = {"schema": _SCHEMA, "verdict": verdict, "inputs": {}, "result": result, "assumptions": []}
        return json.dumps(whole, indent=2)

    def to_text(self) -> str:
        """Print for people: the verdict, then the sections, with what to do under each line that can be mended.

        Returns:
            The text, without a newline at its end.
        """
        broken = ", ".join(line.name for line in self.broken)
        rows = [f"broken    {broken}" if broken else "ok        everything required is there"]
        width = max(len(line.name) for line in self.lines)
        section = ""
        for line in self.lines:
            if line.section != section:
                section = line.section
                rows += ["", section]
            rows.append(f"  {line.state:<10}{line.name:<{width}}  {line.detail}".rstrip())
            if line.mend:
                rows.append(f"  {'':<10}{'':<{width}}  -> {line.mend}")
        return "\n".join(rows)


def collect() -> Report:
    """Look at this machine and installation.

    Returns:
        The report; never raises for something that is missing.
    """
    return Report((*_versions(), *_packages(), *_kernels(), *_transports(), *_tools()))


def report(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what is built, found and missing, and how to mend it. Exit code 1 only if something required is broken."""
    result = collect()
    print(result.to_json() if as_json else result.to_text())
    raise typer.Exit(1 if result.broken else 0)


def _versions() -> Iterator[Line]:
    yield Line("versions", "python", "ok", f"{platform.python_version()} on {platform.platform()}, {sys.executable}")
    installed = [root for root in _ROOTS if found.version(root)]
    if not installed:
        yield Line("versions", "shardlab", "missing", "not installed, run from its sources", "make setup")
    needed: dict[str, str] = {}
    for root in installed:
        yield Line("versions", root, "ok", found.version(root) or "")
        needed |= found.requirements(root)
    for name in sorted(name for name in needed if not name.startswith("shardlab")):
        yield _requirement(name, needed[name])
    transformers = found.version("transformers")
    if transformers:
        yield Line("versions", "transformers", "ok", transformers)
    else:
        yield Line("versions", "transformers", "missing", "only for Hugging Face models", "pip install transformers")


def _requirement(name: str, bound: str) -> Line:
    have = found.version(name)
    wanted = f"{name}>={bound}" if bound else name
    mend = f"pip install -c constraints.txt '{wanted}'"
    if have is None:
        return Line("versions", name, "broken", "not found", mend)
    if bound and not found.version_at_least(have, bound):
        return Line("versions", name, "broken", f"{have} is too old", mend)
    if name == "torch":
        have += f", built for CUDA {cuda}" if (cuda := found.torch_cuda()) else ", CPU only"
    return Line("versions", name, "ok", have)


def _packages() -> Iterator[Line]:
    for package in _PACKAGES:
        path = found.package_file(package)
        if path is None:
            alone = f"make wheels, then: pip install --find-links dist shardlab-{package}"
            mend = "make setup" if found.version("shardlab") else alone
            yield Line("packages", f"shardlab.{package}", "missing", "not installed", mend)
            continue
        sentence = _first_sentence(path)
        state = "not built" if sentence.startswith(_NOT_BUILT_YET) else "ok"
        yield Line("packages", f"shardlab.{package}", state, sentence)


def _first_sentence(path: Path) -> str:
    try:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError) as error:
        return f"cannot be read: {error}"
    return docstring.partition("\n")[0]


def _kernels() -> Iterator[Line]:
    try:
        from shardlab.native import build_info
    except ImportError:
        reason = "shardlab.native is not installed: plain torch is used"
        yield Line("kernels", "C++", "missing", reason, "pip install ./native")
        return
    info = build_info()
    if info.core:
        threads = "OpenMP" if info.openmp else "one thread"
        built = ", ".join(info.variants)
        yield Line("kernels", "C++", "ok", f"{info.isa} in use; built {built} by {info.compiler}; {threads}")
    else:
        yield Line("kernels", "C++", "not built", f"plain torch is used: {info.core_reason}", "then: make native")
    if info.cuda:
        yield Line("kernels", "CUDA", "ok", info.cuda_compiler)
    else:
        mend = "" if "SHARDLAB_CUDA=OFF" in info.cuda_reason else "then: make native"
        yield Line("kernels", "CUDA", "not built", f"plain torch is used: {info.cuda_reason}", mend)


def _transports() -> Iterator[Line]:
    comm = found.package_file("comm")
    torch = found.version("torch")
    if comm is None or torch is None:
        yield Line("transports", "all", "missing", "they need shardlab.comm and torch")
        return
    backends = {path.stem for path in comm.parent.glob("*.py")}
    if "lockstep" in backends:
        yield Line("transports", "lockstep", "ok", "ranks as threads of one process, no installation needed")
    if "dry" in backends:
        yield Line("transports", "dry", "ok", "one rank of many on fake tensors, counts only")
    if "mpi" in backends:
        yield _mpi()
    if "torchdist" in backends:
        cuda = found.torch_cuda()
        devices = f"gloo, nccl for CUDA {cuda}" if cuda else "gloo; no nccl in a CPU build of torch"
        yield Line("transports", "torch", "ok", devices)


def _mpi() -> Line:
    launcher = found.mpi_launcher()
    binding = found.version("mpi4py")
    if launcher is None:
        return Line("transports", "mpi", "missing", "no mpirun beside this Python or on PATH", "pip install mpich")
    if binding is None:
        return Line("transports", "mpi", "missing", "mpi4py not found", "pip install mpi4py")
    path, name = launcher
    return Line("transports", "mpi", "ok", f"{name}, {path}, mpi4py {binding}")


def _tools() -> Iterator[Line]:
    tools = (
        ("C++ compiler", found.compiler(), "install g++ or clang++"),
        ("CUDA compiler", found.cuda_compiler(), "put nvcc on PATH or set CUDA_HOME"),
    )
    for name, tool, mend in tools:
        if tool is None:
            yield Line("machine", name, "missing", "not found; needed to build kernels only", mend)
        else:
            yield Line("machine", name, "ok", f"{tool[1]}, {tool[0]}")
    devices = found.gpu()
    yield Line("machine", "GPU", "ok" if devices else "missing", devices or "not found; the CPU is used")
