"""Recorder: totals, labels and spans."""

import pytest

from shardlab.comm.record import Label, Recorder, recording


def test_totals_are_kept_without_a_ledger() -> None:
    r = Recorder(3)
    r.add("all_gather", "dp", Label(), 10, 30, start_s=0.0)
    r.add("all_gather", "dp+cp", Label(), 10, 5, start_s=0.0)
    r.add("barrier", "dp", Label(), 0, 0, start_s=0.0)
    assert r.wire_bytes == {"dp": 30, "dp+cp": 5} and r.calls == {"all_gather": 2, "barrier": 1}


def test_control_messages_are_counted_apart() -> None:
    r = Recorder(0)
    with recording(r) as ledger:
        r.add("all_gather", "dp", Label(name="u", control=True), 10, 30, start_s=0.0)
    assert r.calls == {"control": 1} and r.wire_bytes.total() == 0
    assert [(s.op, s.name, s.wire_bytes) for s in ledger] == [("control", "u", 30)]


def test_spans_say_who_when_and_what() -> None:
    r = Recorder(3, step=7)
    with recording(r) as ledger:
        r.add("send", "pp", Label(name="h", micro_batch=2), 10, 10, start_s=1.5)
    span = ledger.spans[0]
    assert (span.rank, span.step, span.micro_batch, span.op, span.name, span.axis) == (3, 7, 2, "send", "h", "pp")
    assert (span.payload_bytes, span.wire_bytes, span.start_s) == (10, 10, 1.5) and span.end_s > span.start_s


def test_labels_nest_and_end() -> None:
    r = Recorder(0)
    with r.labelled(name="a", micro_batch=1):
        with r.labelled(control=True):
            assert r.label == Label("a", 1, True)
            with r.labelled(name="b", control=False):
                assert r.label == Label("b", 1, False)
        assert r.label == Label("a", 1, False)
        with pytest.raises(KeyError), r.labelled(name="c"):
            raise KeyError
        assert r.label == Label("a", 1, False)
    assert r.label == Label()


def test_recordings_nest_and_end() -> None:
    r = Recorder(0)
    with recording(r) as outer:
        with recording(r) as inner:
            r.add("barrier", "dp", Label(), 0, 0, start_s=0.0)
        r.add("send", "dp", Label(), 1, 1, start_s=0.0)
    r.add("recv", "dp", Label(), 1, 0, start_s=0.0)
    assert [s.op for s in inner] == ["barrier"] and [s.op for s in outer] == ["send"] and r.ledger is None
