"""The README's programs run as they stand, and the files that the documents name are there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(folder: Path, program: str, *launcher: str) -> str:
    (folder / "train.py").write_text(program)
    done = subprocess.run(
        [*launcher, sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_training_program_gives_the_same_loss_alone_and_on_ranks(tmp_path: Path) -> None:
    alone = run(tmp_path, PROGRAMS[0])
    assert alone.startswith("loss 2.")
    assert run(tmp_path, PROGRAMS[0], "mpirun", "-n", "2").startswith("loss 2.")
    assert (tmp_path / "model.pt").stat().st_size > 4 * 64 * 256


def test_the_program_of_lockstep_ranks(tmp_path: Path) -> None:
    call = 'run_ranks({"dp": 4}, body)'
    assert call in PROGRAMS[1]
    shown = run(tmp_path, "import torch\n" + PROGRAMS[1].replace(call, f"print({call})"))
    assert shown.count("tensor([6., 6.])") == 4


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_nothing_is_left_to_fill_in_and_linked_files_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "@@" not in text
    named = re.findall(r"\]\(([\w./-]+)\)", text) + re.findall(
        r"\| ((?:packages|simulator|native)/[\w./-]+\.py) \|", text
    )
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_life_of_a_parameter_names_files_that_exist() -> None:
    life = (
        (ROOT / "ARCHITECTURE.md")
        .read_text()
        .split("## The life of a parameter")[1]
        .split("## The life of a message")[0]
    )
    files = set(re.findall(r"`(\w+\.py)`", life))
    here = {path.name for path in (ROOT / "packages").rglob("*.py")}
    assert len(files) > 10
    assert files <= here
