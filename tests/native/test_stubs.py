"""The hand-written stubs name what the compiled modules offer, and nothing else."""

import ast
import importlib
from pathlib import Path

import pytest

import shardlab.native
from shardlab.native import build_info

STUBS = Path(shardlab.native.__file__).parent


def declared(module: str) -> set[str]:
    tree = ast.parse((STUBS / f"{module}.pyi").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return functions | {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]


@pytest.mark.parametrize("module", ["_core", "_cuda", "_build"])
def test_stub_and_module_agree(module: str) -> None:
    info = build_info()
    if not {"_core": info.core, "_cuda": info.cuda, "_build": True}[module]:
        pytest.skip(f"{module} is not built: {info.core_reason or info.cuda_reason}")
    names = {name for name in vars(importlib.import_module(f"shardlab.native.{module}")) if not name.startswith("__")}
    assert declared(module) == names


def test_the_public_names_are_those_of_the_kernels() -> None:
    assert all(callable(getattr(shardlab.native, name)) for name in shardlab.native.__all__)
    with pytest.raises(AttributeError, match="no attribute 'adam'"):
        shardlab.native.adam  # noqa: B018
