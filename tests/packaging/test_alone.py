"""A package installs and works with nothing but what it declares."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.clean import CleanEnvironment, clean_environment, declared_by
from tests.packaging.repository import ROOT, distributions

PACKAGES = distributions()
BACKEND = ["hatchling"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of the packages written in Python alone."""
    target = tmp_path_factory.mktemp("dist")
    folders = [str(folder) for name, folder in PACKAGES.items() if name != "native"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "-w", str(target), *folders], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return target


def importable(environment: CleanEnvironment, names: list[str]) -> dict[str, str]:
    """Import each of the names in a process of the environment; "" or the error."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name); print(name, '')\n"
        "    except ImportError as error: print(name, type(error).__name__)\n"
    )
    done = environment.run("python", "-c", code, *names)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("name", "siblings"),
    [
        ("plan", ["plan"]),
        ("comm", ["plan", "comm"]),
        ("zero", ["plan", "comm", "zero"]),
        ("sim", ["plan", "sim"]),
        ("engine", ["plan", "comm", "zero", "engine"]),
        ("pipeline", ["plan", "comm", "pipeline"]),
    ],
)
def test_a_wheel_brings_its_siblings_and_no_others(
    tmp_path: Path, wheels: Path, name: str, siblings: list[str]
) -> None:
    environment = clean_environment(tmp_path / "env", declared_by(*(PACKAGES[one] for one in siblings)))
    done = environment.install("--find-links", wheels, f"shardlab-{name}")
    assert done.returncode == 0, done.stderr
    found = importable(environment, [f"shardlab.{one}" for one in PACKAGES])
    assert {one for one in PACKAGES if found[f"shardlab.{one}"] == ""} == set(siblings)


def test_packages_install_from_their_folders_together(tmp_path: Path) -> None:
    folders = [ROOT / "packages" / name for name in ("plan", "comm", "zero")]
    environment = clean_environment(tmp_path / "env", declared_by(*folders) + BACKEND)
    done = environment.install(*folders)
    assert done.returncode == 0, done.stderr
    code = "from shardlab.zero import shard; from shardlab.comm import init, run_ranks; print(shard.__module__)"
    done = environment.run("python", "-c", code)
    assert done.stdout.startswith("shardlab.zero"), done.stderr


def test_zsim_needs_neither_torch_nor_mpi(tmp_path: Path, wheels: Path) -> None:
    environment = clean_environment(tmp_path / "env", declared_by(PACKAGES["plan"], PACKAGES["sim"]))
    assert environment.install("--find-links", wheels, "shardlab-sim").returncode == 0
    assert importable(environment, ["torch", "mpi4py"]) == {
        "torch": "ModuleNotFoundError",
        "mpi4py": "ModuleNotFoundError",
    }
    done = environment.run("zsim", "--help")
    assert done.returncode == 0, done.stderr
    assert "estimate" in done.stdout


def test_the_report_of_a_package_alone_says_what_it_lacks(tmp_path: Path, wheels: Path) -> None:
    folders = [PACKAGES[name] for name in ("plan", "comm", "zero", "engine")]
    environment = clean_environment(tmp_path / "env", declared_by(*folders))
    assert environment.install("--find-links", wheels, "shardlab-engine").returncode == 0
    done = environment.run("shardlab", "report")
    assert done.returncode == 0, done.stderr
    assert "shardlab.native is not installed: plain torch is used" in done.stdout


@pytest.mark.slow
def test_native_compiles_alone(tmp_path: Path) -> None:
    native = PACKAGES["native"]
    builder = ["scikit-build-core", "pybind11", "cmake", "ninja"]
    environment = clean_environment(tmp_path / "env", declared_by(native) + builder)
    done = environment.install(native, f"-Cbuild-dir={tmp_path / 'build'}", "-Ccmake.define.SHARDLAB_CUDA=OFF")
    assert done.returncode == 0, done.stderr
    code = "from shardlab.native import build_info as b, sum_ranks; print(b().core, b().cuda_reason)"
    done = environment.run("python", "-c", code)
    assert done.stdout.strip() == "True left out by SHARDLAB_CUDA=OFF", done.stderr
