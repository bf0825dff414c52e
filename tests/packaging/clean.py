"""Environments that hold exactly what some distributions declare, made in about a second and without a network.

A new virtual environment gets links to the installed files of the declared third-party distributions and of what those
require in turn, and nothing else. What is missing from a declaration is then missing from the environment.
"""

import importlib.metadata
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.packaging.repository import project


@dataclass(frozen=True, slots=True)
class CleanEnvironment:
    """A virtual environment without pip of its own; the running Python's pip installs into it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *what: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Install without an index and without build isolation; what is declared must be there already."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python), "install"]
        options = ["-q", "--no-index", "--no-build-isolation", "--root-user-action=ignore"]
        return _run([*pip, *options, *map(str, what)], variables)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment."""
        return _run([str(self.folder / "bin" / command[0]), *map(str, command[1:])], {})


def clean_environment(folder: Path, declared: list[str]) -> CleanEnvironment:
    """Make an environment with the requirements given and theirs.

    Args:
        folder: where; must not exist.
        declared: requirement lines; those of our own packages are left out.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for distribution in _closure(declared):
        files = distribution.files
        assert files is not None, f"{distribution.name} has no list of its files"
        for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return CleanEnvironment(folder)


def declared_by(*folders: Path) -> list[str]:
    """The requirement lines of distributions in the repository."""
    return [line for folder in folders for line in project(folder)["project"]["dependencies"]]


def _closure(declared: list[str]) -> list[importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [Requirement(line) for line in declared]
    while waiting:
        requirement = waiting.pop()
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not wanted or requirement.name in found or requirement.name.startswith("shardlab"):
            continue
        found[requirement.name] = importlib.metadata.distribution(requirement.name)
        waiting += [Requirement(line) for line in importlib.metadata.requires(requirement.name) or []]
    return list(found.values())


def _run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "CXX")}
    return subprocess.run(
        command,
        cwd="/",
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
