"""The command `shardlab`. A sub-command is a function in a module of its own, imported when it is asked for.

Such a module imports torch or MPI inside its function only, so that `shardlab --help` answers at once and `shardlab
report` answers everywhere. Exit codes: 0 yes; 1 answered, and the answer is no; 2 usage, configuration or I/O; 101
internal error; 130 interrupted.
"""

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["COMMANDS", "main"]

# Name of the sub-command to "module:function". A new one is one line here.
COMMANDS = {
    "dry": "shardlab.engine.dry_command:dry",
    "report": "shardlab.engine.report:report",
}

_INTERNAL_ERROR = 101
_USAGE_OR_IO = 2


class _LazyGroup(TyperGroup):
    """Sub-commands from the table above."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        app = typer.Typer(add_completion=False)
        app.command(cmd_name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(app)


_app = typer.Typer(cls=_LazyGroup, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@_app.callback()
def _shardlab() -> None:
    """Large-model training that one can read, run on a laptop, and predict."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code.

    Args:
        arguments: words after the program's name; None takes them from sys.argv.

    Raises:
        SystemExit: always, with the exit code.
    """
    try:
        _app(args=None if arguments is None else list(arguments), prog_name="shardlab")
    except OSError as error:
        print(f"shardlab: {error}", file=sys.stderr)
        sys.exit(_USAGE_OR_IO)
    except Exception:
        traceback.print_exc()
        print("shardlab: this is a fault of shardlab; please report it with the lines above", file=sys.stderr)
        sys.stderr.flush()
        sys.exit(_INTERNAL_ERROR)


if __name__ == "__main__":
    main()
