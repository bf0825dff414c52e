"""Exit codes of zsim, in one place."""

import enum


class Exit(enum.IntEnum):
    """What the exit code of zsim says."""

    YES = 0
    """Answered: it fits."""
    NO = 1
    """Answered, and the answer is no."""
    USAGE = 2
    """Usage, configuration or input and output."""
    INTERNAL = 101
    """A fault of zsim itself."""
    INTERRUPTED = 130
    """Ctrl-C."""
