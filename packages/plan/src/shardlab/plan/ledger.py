"""What was done, where, when, with how many bytes: one type for a measured and for a predicted run.

`payload_bytes` is what the caller handed over; `wire_bytes` is what this rank posted to other ranks. Both are counted
per call, so a prediction can be held against a run call by call. Ops of the comm layer are the strings in `COMM_OPS`;
`control` (guards, used-flags, agreement messages) stays outside wire bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields
from typing import Any

COMM_OPS = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "send",
    "recv",
    "barrier",
    "control",
)
"""The ops a communicator writes."""

SCHEMA = "shardlab.ledger/1"


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that one rank did.

    Args:
        rank: Global rank.
        step: Optimizer step, from 0.
        micro_batch: Micro-batch, from 0, or None outside micro-batches.
        op: Name of the operation.
        name: Unit, parameter or layer it was done for, or ''.
        axis: Mesh axis or axes joined by '+', or '' where none is involved.
        payload_bytes: Bytes handed over by the caller.
        wire_bytes: Bytes this rank posted to other ranks.
        start_s: Start in seconds.
        end_s: End in seconds, on the same clock.
    """

    rank: int
    step: int
    micro_batch: int | None
    op: str
    name: str
    axis: str
    payload_bytes: int
    wire_bytes: int
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True)
class Total:
    """Sums over spans.

    Args:
        count: Number of spans.
        payload_bytes: Bytes handed over.
        wire_bytes: Bytes posted to others, `control` excluded.
        time_s: Sum of durations in seconds.
    """

    count: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0
    time_s: float = 0.0

    def add(self, span: Span) -> None:
        """Count one more span."""
        self.count += 1
        self.payload_bytes += span.payload_bytes
        self.wire_bytes += 0 if span.op == "control" else span.wire_bytes
        self.time_s += span.end_s - span.start_s


@dataclass(slots=True)
class Ledger:
    """A list of spans in the order of their ends.

    Args:
        spans: The spans.
    """

    spans: list[Span] = field(default_factory=list)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)

    def append(self, span: Span) -> None:
        """Write one span."""
        self.spans.append(span)

    def extend(self, spans: Iterable[Span]) -> None:
        """Write several spans, such as another rank's."""
        self.spans.extend(spans)

    def filter(self, **wanted: object) -> Ledger:
        """Return the spans whose fields equal the given values.

        Args:
            wanted: Field name to value, or to a tuple, list or set of allowed values.

        Raises:
            ValueError: If a span has no such field.
        """
        allowed: dict[str, tuple[object, ...]] = {}
        for name, value in wanted.items():
            if name not in _FIELDS:
                raise ValueError(f"a span has no field {name!r}; its fields are {' '.join(_FIELDS)}")
            allowed[name] = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
        return Ledger([s for s in self.spans if all(getattr(s, name) in ok for name, ok in allowed.items())])

    def totals(self, *by: str) -> dict[tuple[Any, ...], Total]:
        """Return sums by the given fields, `("op", "axis")` if none is given, in order of first appearance."""
        found: dict[tuple[Any, ...], Total] = {}
        for span in self.spans:
            key = tuple(getattr(span, name) for name in by or ("op", "axis"))
            found.setdefault(key, Total()).add(span)
        return found

    def wire_bytes(self, **wanted: object) -> int:
        """Return the bytes posted to other ranks, `control` excluded, over the spans that `filter` keeps."""
        return sum(span.wire_bytes for span in self.filter(**wanted) if span.op != "control")

    def to_json(self) -> str:
        """Write the ledger as JSON: field names once, then one row per span."""
        rows = [list(astuple(span)) for span in self.spans]
        return json.dumps({"schema": SCHEMA, "fields": list(_FIELDS), "spans": rows}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Read what `to_json` wrote.

        Raises:
            ValueError: If the schema or the fields are not ours.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("fields") != list(_FIELDS):
            got = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"not a ledger: schema {got!r}, want {SCHEMA!r} with fields {' '.join(_FIELDS)}")
        return cls([Span(*row) for row in data["spans"]])

    def to_perfetto(self) -> str:
        """Write the ledger as Chrome trace JSON: one process per rank, one thread per axis."""
        lanes: dict[tuple[int, str], int] = {}
        events: list[dict[str, Any]] = []
        for span in self.spans:
            lane = lanes.setdefault((span.rank, span.axis), len(lanes))
            label = f"{span.op} {span.name}".strip()
            args = {"payload_bytes": span.payload_bytes, "wire_bytes": span.wire_bytes, "step": span.step}
            start, length = span.start_s * 1e6, (span.end_s - span.start_s) * 1e6
            events.append({"ph": "X", "pid": span.rank, "tid": lane, "name": label, "cat": span.op,
                           "ts": start, "dur": length, "args": {**args, "micro_batch": span.micro_batch}})  # fmt: skip
        for (rank, axis), lane in lanes.items():
            named = {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": axis or "compute"}}
            events += [named, {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}]
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


_FIELDS = tuple(f.name for f in fields(Span))
