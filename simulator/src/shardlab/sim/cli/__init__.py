"""The command zsim: result to stdout, everything else to stderr, exit codes as in `exits`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from shardlab.sim.cli.estimate import estimate
from shardlab.sim.cli.exits import Exit
from shardlab.sim.request import RequestError

__all__ = ["app", "main", "run"]

# Typer carries its own copy of click, whose errors of usage have no public name of their own.
_USAGE: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(name="zsim", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def zsim() -> None:
    """Predict what a training run will need before it is started.

    --debug, anywhere, shows where an internal error was raised.
    """


app.command("estimate")(estimate)


def run(action: Callable[[], object]) -> int:
    """Run a command and turn whatever it does into an exit code, with one message on stderr if it fails.

    Args:
        action: The command; returns an exit code or None.
    """
    try:
        code = action()
        return int(code) if isinstance(code, int) else Exit.YES
    except typer.Exit as stop:
        return stop.exit_code
    except _USAGE as error:
        # as typer prints it, without the box around it: what was wrong, and the nearest option
        print(f"zsim: {error.format_message()}", file=sys.stderr)  # type: ignore[attr-defined]
        return Exit.USAGE
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except RequestError as error:
        print(f"zsim: {error}", file=sys.stderr)
        return Exit.USAGE
    except BrokenPipeError:  # the reader of a pipe left; what it wanted it has
        sys.stderr.close()
        return Exit.YES
    except Exception as error:
        print(f"zsim: internal error: {type(error).__name__}: {error}; --debug shows where", file=sys.stderr)
        return Exit.INTERNAL


def main() -> None:
    """Entry point of the command."""
    if "--debug" in sys.argv:
        sys.argv.remove("--debug")
        app(prog_name="zsim", standalone_mode=False)
        return
    sys.exit(run(lambda: app(prog_name="zsim", standalone_mode=False)))
