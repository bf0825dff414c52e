"""Where things lie in the repository, for the tests that read it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".cu"}
GENERATED = {".venv", "build", "dist", "__pycache__", ".git", "runs"}


def distributions() -> dict[str, Path]:
    """Folder of each single package, by the last part of its import name."""
    folders = [*sorted((ROOT / "packages").iterdir()), ROOT / "native", ROOT / "simulator"]
    return {("sim" if folder.name == "simulator" else folder.name): folder for folder in folders if folder.is_dir()}


def project(folder: Path) -> dict[str, Any]:
    """The parsed pyproject.toml of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def source_files() -> Iterator[Path]:
    """Every file of code in the repository."""
    for folder in ("packages", "native", "simulator", "tests", "examples", "benchmarks", "tutorials", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and not GENERATED & set(path.relative_to(ROOT).parts):
                yield path
