"""Exit codes and messages of the command."""

import subprocess
import sys

import pytest
import typer

from shardlab.sim import RequestError
from shardlab.sim.cli import app, run
from shardlab.sim.cli.exits import Exit


def raising(error: BaseException) -> int:
    def action() -> None:
        raise error

    return run(action)


def test_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: Exit.NO) == 1 and run(lambda: None) == 0
    assert raising(RequestError("what, where")) == 2
    assert raising(KeyboardInterrupt()) == raising(typer.Abort()) == 130
    assert raising(typer.Exit(0)) == 0
    assert raising(RuntimeError("oh")) == 101
    err = capsys.readouterr().err
    assert "zsim: what, where" in err and "internal error: RuntimeError: oh" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["estimate", "--gpu", "8"], "--gpus"),
        (["estimate", "--gpus", "many"], "--gpus"),
        (["estimat"], "estimate"),
        (["estimate", "--gpus", "8"], "--model"),
    ],
)
def test_usage_errors_name_what_is_near(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: app(words, standalone_mode=False)) == 2
    out, err = capsys.readouterr()
    assert message in err and out == "" and "Traceback" not in err


def test_neither_torch_nor_mpi_is_imported() -> None:
    code = (
        "import sys\n"
        "from shardlab.sim.cli import main\n"
        "sys.argv = 'zsim estimate --model llama3-8b --gpus 64 --device h100-80g --zero 3'.split()\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, [m for m in ('torch', 'mpi4py', 'numpy') if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "0 []"
    assert done.stdout.startswith("fits")
