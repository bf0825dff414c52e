"""Bytes, seconds, rates and counts: parsed and printed with the unit that was used as the divisor.

GB is 10^9 bytes and GiB is 2^30 bytes. The two differ by 7.4 %, which is more than many plans have to spare, so no
function here prints one under the name of the other.
"""

from __future__ import annotations

import math
import re

GB = 10**9
GIB = 2**30

_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_NUMBER = re.compile(r"^\s*([0-9.eE+_-]+?)\s*([a-zA-Z]*)\s*$")


def significant(value: float, digits: int = 3) -> str:
    """Print a number with a fixed count of significant digits and no exponent.

    Args:
        value: The number.
        digits: Significant digits to keep.
    """
    if value == 0:
        return "0"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places > 0 and text.endswith("0" * places) else text


def format_gib(num_bytes: float, digits: int = 3) -> str:
    """Print bytes in GiB (2^30), the unit of memory."""
    return f"{significant(num_bytes / GIB, digits)} GiB"


def format_gb(num_bytes: float, digits: int = 3) -> str:
    """Print bytes in GB (10^9), the unit of data sheets and links."""
    return f"{significant(num_bytes / GB, digits)} GB"


def format_bytes(num_bytes: float, digits: int = 3) -> str:
    """Print bytes in the largest binary unit that leaves at least one whole unit."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(num_bytes) >= _BYTES[unit.lower()]:
            return f"{significant(num_bytes / _BYTES[unit.lower()], digits)} {unit}"
    return f"{num_bytes:,.0f} B"


def format_count(count: float, digits: int = 3) -> str:
    """Print a count such as parameters with the suffix k, M, B or T."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{significant(count / size, digits)}{suffix}"
    return significant(count, digits)


def format_s(seconds: float, digits: int = 3) -> str:
    """Print a duration in s, ms or us."""
    for size, suffix in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= size:
            return f"{significant(seconds / size, digits)} {suffix}"
    return f"{significant(seconds * 1e6, digits)} us"


def format_rate(per_s: float, unit: str, digits: int = 3) -> str:
    """Print a rate with a decimal prefix, such as `312 TFLOP/s` or `300 GB/s`.

    Args:
        per_s: Units per second.
        unit: What is counted, `FLOP` or `B`.
        digits: Significant digits to keep.
    """
    for size, prefix in _DECIMAL:
        if abs(per_s) >= size:
            return f"{significant(per_s / size, digits)} {prefix}{unit}/s"
    return f"{significant(per_s, digits)} {unit}/s"


def parse_bytes(text: str) -> int:
    """Read a size such as `80GB`, `40 GiB` or `1024`.

    Returns:
        The size in bytes, rounded to a whole number.

    Raises:
        ValueError: If the number or the unit is not understood.
    """
    found = _NUMBER.match(text)
    unit = (found.group(2) or "B").lower() if found else ""
    if not found or unit not in _BYTES:
        raise ValueError(f"size {text!r}: want a number and one of B kB MB GB TB KiB MiB GiB TiB, such as '80GB'")
    try:
        return round(float(found.group(1)) * _BYTES[unit])
    except ValueError:
        raise ValueError(f"size {text!r}: {found.group(1)!r} is not a number") from None


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
