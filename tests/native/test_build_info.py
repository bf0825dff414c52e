"""What was built is said without torch, and a machine that can build has built."""

import os
import shutil
import subprocess
import sys

import pytest

from shardlab.native import build_info


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_the_kernels_are_built_where_a_compiler_is_found() -> None:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler on this machine")
    info = build_info()
    assert info.core, info.core_reason
    assert info.isa in info.variants
    assert info.compiler


def test_each_module_is_there_or_has_a_reason() -> None:
    info = build_info()
    assert info.core == (info.core_reason == "")
    assert info.cuda == (info.cuda_reason == "")


def test_it_imports_neither_torch_nor_numpy() -> None:
    done = run(
        "import sys; from shardlab.native import build_info as b; b(); print({'torch', 'numpy'} & {*sys.modules})"
    )
    assert done.stdout.strip() == "set()", done.stderr
