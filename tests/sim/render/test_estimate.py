"""The text says what the JSON says."""

import io
from typing import Any

from rich.console import Console

from shardlab.sim import estimate
from shardlab.sim.render.estimate import render


def text(**changes: Any) -> tuple[str, dict[str, Any]]:
    found = estimate(**{"model": "gpt2", "gpus": 8, "device": "a100-80g", "zero": 3, **changes}).to_dict()
    out = io.StringIO()
    render(found, Console(file=out, width=100, soft_wrap=True))
    return out.getvalue(), found


def test_verdict_first_then_bars_then_numbers() -> None:
    shown, found = text()
    lines = shown.splitlines()
    assert lines[0].startswith("fits") and "GiB per rank, peak in " in lines[0] and "to spare" in lines[0]
    order = ["memory per rank", "bytes per parameter", "on the wire per rank", "step ", "rests on"]
    places = [next(k for k, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert places == sorted(places)
    assert all(sentence in shown for sentence in found["assumptions"])


def test_both_units_are_printed_under_their_names() -> None:
    shown, found = text()
    row = next(line for line in shown.splitlines() if line.startswith("capacity"))
    capacity = found["result"]["memory"]["capacity_bytes"]
    assert row.split()[1:3] == [f"{capacity / 2**30:.2f}", f"{capacity / 10**9:.2f}"]
    header = next(line for line in shown.splitlines() if line.startswith("memory per rank"))
    assert header.split()[-2:] == ["GiB", "GB"]


def test_bars_are_scaled_to_capacity() -> None:
    shown, found = text(micro_batch=64)
    row = next(line for line in shown.splitlines() if line.startswith("allocated"))
    memory = found["result"]["memory"]
    want = memory["per_rank_bytes"]["allocated"] / memory["capacity_bytes"] * 40
    assert abs(row.count("█") - want) <= 1


def test_padding_has_its_own_line() -> None:
    shown, _ = text(model="7.5e9", gpus=64)
    assert any(line.startswith("padding") for line in shown.splitlines())
    assert "states only" in shown.splitlines()[0]


def test_does_not_fit_lists_changes() -> None:
    shown, found = text(model="llama3-8b", zero=0)
    assert shown.startswith("does not fit") and "too much" in shown.splitlines()[0]
    for change in found["result"]["changes"]:
        assert all(f"--{flag.replace('_', '-')} {value}" in shown for flag, value in change["flags"].items())


def test_no_escape_codes_without_a_terminal() -> None:
    assert "\x1b" not in text()[0]
