"""One idea per file: a file above 400 lines, a function above 60, or a `utils` fails."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.repository import ROOT, source_files

FILE_LINES = 400
FUNCTION_LINES = 60


def long_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and length of each function that is too long, its docstring included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                yield node.name, length


def faults(path: Path, text: str) -> Iterator[str]:
    """Sentences about one file."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines; at most {FILE_LINES}"
    if "utils" in {part.removesuffix(path.suffix) for part in path.parts}:
        yield f"{path}: `utils` says nothing; name it after what it does"
    if path.suffix == ".py":
        for name, length in long_functions(text):
            yield f"{path}: {name} has {length} lines; at most {FUNCTION_LINES}"


def test_files_and_functions_are_short() -> None:
    files = list(source_files())
    assert len(files) > 50
    found = [fault for path in files for fault in faults(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("a.py", "x = 1\n" * 401, "401 lines"),
        ("a.py", "class A:\n  def f(self):\n" + "    x = 1\n" * 60, "f has 61 lines"),
        ("a/utils.py", "", "utils"),
        ("utils/a.h", "", "utils"),
    ],
)
def test_a_fault_is_found(path: str, text: str, said: str) -> None:
    (fault,) = faults(Path(path), text)
    assert said in fault


def test_what_is_at_the_limit_passes() -> None:
    assert list(faults(Path("a.py"), "def f():\n" + "    x = 1\n" * 59 + "x = 1\n" * 340)) == []
