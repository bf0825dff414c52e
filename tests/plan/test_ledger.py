"""One ledger for measured and predicted runs."""

import json

import pytest

from shardlab.plan import Ledger, Span


def spans() -> list[Span]:
    return [
        Span(0, 0, 0, "all_gather", "blocks.0", "dp", 64, 192, 0.0, 1.0),
        Span(0, 0, 0, "all_gather", "blocks.1", "dp", 32, 96, 1.0, 3.0),
        Span(0, 0, None, "control", "", "dp", 32, 96, 3.0, 3.5),
        Span(1, 0, 0, "reduce_scatter", "blocks.1", "dp", 128, 96, 1.0, 2.0),
    ]


def test_totals_by_op_and_axis() -> None:
    totals = Ledger(spans()).totals()
    assert list(totals) == [("all_gather", "dp"), ("control", "dp"), ("reduce_scatter", "dp")]
    gather = totals["all_gather", "dp"]
    assert (gather.count, gather.payload_bytes, gather.wire_bytes, gather.time_s) == (2, 96, 288, 3.0)


def test_control_is_outside_wire_bytes() -> None:
    ledger = Ledger(spans())
    assert ledger.wire_bytes() == 192 + 96 + 96
    assert ledger.totals("op")["control",].wire_bytes == 0


def test_filter() -> None:
    ledger = Ledger(spans())
    assert len(ledger.filter(rank=0, op=("all_gather", "control"))) == 3
    assert [s.name for s in ledger.filter(op="all_gather", name="blocks.1")] == ["blocks.1"]
    with pytest.raises(ValueError, match="no field 'unit'"):
        ledger.filter(unit="x")


def test_json_both_ways() -> None:
    ledger = Ledger(spans())
    assert Ledger.from_json(ledger.to_json()) == ledger
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.from_json('{"schema": "other"}')
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.from_json("[]")


def test_perfetto_has_one_event_per_span() -> None:
    events = json.loads(Ledger(spans()).to_perfetto())["traceEvents"]
    durations = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["ts"], e["dur"]) for e in durations][1] == (0, 1e6, 2e6)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    assert durations[0]["args"]["wire_bytes"] == 192


def test_append_and_extend() -> None:
    ledger = Ledger()
    ledger.append(spans()[0])
    ledger.extend(spans()[1:])
    assert len(ledger) == 4 and list(ledger) == spans()
