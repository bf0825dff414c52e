"""Reading a JSON object from a file, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        ValueError: If the file is not JSON, or holds something else than an object.
        OSError: If it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: want a JSON object, got {type(data).__name__}")
    return data
