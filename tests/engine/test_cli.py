"""Exit codes and the table of sub-commands."""

import sys
import types

import pytest
import typer

from shardlab.engine import cli


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return int(end.value.code or 0)


def use(monkeypatch: pytest.MonkeyPatch, function: object) -> None:
    """Make `shardlab trial` call the function."""
    module = types.ModuleType("trial_module")
    module.trial = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trial_module", module)
    monkeypatch.setitem(cli.COMMANDS, "trial", "trial_module:trial")


def test_help_lists_every_sub_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in cli.COMMANDS)


def test_a_name_that_is_not_there_is_a_usage_error_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reprot") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "No such command 'reprot'" in captured.err


def test_a_sub_command_gives_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(code: int) -> None:
        """Try."""
        raise typer.Exit(code)

    use(monkeypatch, trial)
    assert run("trial", "0") == 0
    assert run("trial", "1") == 1
    assert run("trial", "one") == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "plan.json"), 2, "plan.json"),
        (ZeroDivisionError("oh"), 101, "this is a fault of shardlab"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_have_their_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    def trial() -> None:
        """Try."""
        raise error

    use(monkeypatch, trial)
    assert run("trial") == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
