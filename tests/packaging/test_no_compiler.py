"""The whole installs on a machine without a compiler, and says what is missing. Case INS-01."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.clean import CleanEnvironment, clean_environment, declared_by
from tests.packaging.repository import GENERATED, ROOT

SOURCES = ("packages", "native", "simulator", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
NO_COMPILER = {"CXX": "/nonexistent/c++", "CUDACXX": "/nonexistent/nvcc"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """The root distribution, built from a copy of its sources without a compiler, alone in an environment."""
    folder = tmp_path_factory.mktemp("no_compiler")
    copy = folder / "checkout"
    copy.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns(*GENERATED))
        else:
            shutil.copy(source, copy / name)
    builder = ["scikit-build-core", "pybind11", "cmake", "ninja"]
    environment = clean_environment(folder / "env", declared_by(ROOT) + builder)
    done = environment.install(copy, **NO_COMPILER)
    assert done.returncode == 0, done.stdout + done.stderr
    return environment


def test_INS_01_every_package_is_there_and_the_reason_is_said(environment: CleanEnvironment) -> None:
    code = (
        "import shardlab.plan, shardlab.comm, shardlab.zero, shardlab.engine, shardlab.sim\n"
        "from shardlab.native import build_info\n"
        "info = build_info(); print(info.core, info.cuda, info.core_reason)\n"
    )
    done = environment.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False False no working C++ compiler was found: install g++")


def test_INS_01_kernels_fall_back(environment: CleanEnvironment) -> None:
    code = (
        "import torch\n"
        "from shardlab.native import sum_ranks\n"
        "out = torch.empty(3); sum_ranks(torch.ones(4, 3), out); print(out.tolist())\n"
    )
    done = environment.run("python", "-c", code)
    assert done.stdout.strip() == "[4.0, 4.0, 4.0]", done.stderr


def test_INS_01_the_report_ends_well(environment: CleanEnvironment) -> None:
    done = environment.run("shardlab", "report")
    assert done.returncode == 0, done.stderr
    assert "not built C++" in done.stdout
    assert "-> then: make native" in done.stdout


def test_a_required_cuda_module_without_a_compiler_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "native"
    shutil.copytree(ROOT / "native", copy, ignore=shutil.ignore_patterns(*GENERATED))
    pip = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    done = subprocess.run(
        [*pip, "-Ccmake.define.SHARDLAB_CUDA=ON", str(copy)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **NO_COMPILER},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "SHARDLAB_CUDA=ON, but" in done.stdout + done.stderr
