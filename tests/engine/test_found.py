"""What is looked for is found where it lies, and nothing that is missing or broken raises."""

import sys
from pathlib import Path

import pytest

from shardlab.engine import found


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("have", "bound", "enough"),
    [("2.13.0+cpu", "2.13", True), ("2.9.1", "2.13", False), ("3", "2.13", True), ("2.13", "2.13.0.1", False)],
)
def test_versions_are_compared_as_numbers(have: str, bound: str, enough: bool) -> None:
    assert found.version_at_least(have, bound) is enough


def test_requirements_leave_extras_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.13", 'mpich>=5.0; sys_platform != "win32"', "numpy", 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(found.importlib.metadata, "requires", lambda name: lines)
    assert found.requirements("x") == {"torch": "2.13", "mpich": "5.0", "numpy": ""}


def test_what_is_not_installed_is_none_or_empty() -> None:
    assert found.version("shardlab-no-such-thing") is None
    assert found.requirements("shardlab-no-such-thing") == {}
    assert found.package_file("no_such_package") is None


def test_a_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shardlab.offload", raising=False)
    path = found.package_file("offload")
    assert path is not None
    assert path.name == "__init__.py"
    assert "shardlab.offload" not in sys.modules


def test_cuda_of_torch_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert found.torch_cuda() == "13.0"
    (package / "version.py").write_text("cuda: Optional[str] = None\n")
    assert found.torch_cuda() is None


def test_the_compiler_that_cxx_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = program(tmp_path, "mine++", "echo mine 9.9; echo more")
    monkeypatch.setenv("CXX", str(mine))
    assert found.compiler() == (str(mine), "mine 9.9")
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    assert found.compiler() is None


def test_nvcc_is_looked_for_under_cuda_home_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = program(tmp_path / "bin", "nvcc", "echo Cuda compilation tools, release 12.8, V12.8.1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert found.cuda_compiler() == (str(nvcc), "nvcc 12.8")


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("HYDRA build details:\n    Version:   5.0.2", "MPICH (Hydra) 5.0.2"),
        ("mpirun (Open MPI) 5.0.11", "Open MPI 5.0.11"),
    ],
)
def test_mpi_is_named_by_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, name: str) -> None:
    mpirun = program(tmp_path, "mpirun", f"cat <<'E'\n{output}\nE")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert found.mpi_launcher() == (str(mpirun), name)


def test_a_program_that_fails_or_hangs_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path, "failing", "echo 1.0; exit 3")))
    assert found.compiler() is None
    monkeypatch.setattr(found, "_PROGRAM_TIMEOUT_S", 0.2)
    monkeypatch.setenv("CXX", str(program(tmp_path, "hanging", "exec sleep 30")))
    assert found.compiler() is None


def test_devices_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "nvidia-smi", "echo H100, 570.1; echo H100, 570.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found.gpu() == "H100, 570.1; H100, 570.1"
    monkeypatch.setenv("PATH", "")
    assert found.gpu() is None
