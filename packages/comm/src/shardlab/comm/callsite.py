"""Where in the caller's code a communicator was called: the first frame outside this package."""

import os
import sys
from typing import NamedTuple

__all__ = ["Site", "call_site"]

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Site(NamedTuple):
    """A line of code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_site() -> Site:
    """Return the innermost line that is not in shardlab.comm."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_HERE) and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)
