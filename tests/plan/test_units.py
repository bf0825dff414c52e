"""Sizes keep the name of their divisor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.plan import units


def test_gb_and_gib_differ() -> None:
    assert units.format_gb(31_146_500_000, 4) == "31.15 GB"
    assert units.format_gib(31_146_500_000, 4) == "29.01 GiB"


@pytest.mark.parametrize(
    ("text", "want"),
    [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("1024", 1024), ("1.5kB", 1500), ("0.5 KiB", 512), ("1e3B", 1000)],
)
def test_parse_bytes(text: str, want: int) -> None:
    assert units.parse_bytes(text) == want


@pytest.mark.parametrize("text", ["", "80 GX", "GB", "1e", "--1GB"])
def test_parse_bytes_names_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        units.parse_bytes(text)


def test_significant_digits() -> None:
    assert [units.significant(x) for x in (0, 1.875, 16.640625, 120.0, 1234.5, 0.00123)] == [
        "0",
        "1.88",
        "16.6",
        "120",
        "1,234",
        "0.00123",
    ]


def test_times_rates_counts() -> None:
    assert [units.format_s(x) for x in (1.5, 0.0123, 4e-6)] == ["1.50 s", "12.3 ms", "4 us"]
    assert units.format_rate(312e12, "FLOP") == "312 TFLOP/s"
    assert units.format_count(7.5e9) == "7.50B"
    assert units.format_bytes(2048) == "2 KiB"
    assert units.format_bytes(12) == "12 B"


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_round_up(value: int, multiple: int) -> None:
    up = units.round_up(value, multiple)
    assert up % multiple == 0 and 0 <= up - value < multiple
