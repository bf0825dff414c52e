"""Predicted, dry run, measured: three separate sources for the bytes of one training step, side by side.

predicted   formulas of shardlab.plan over the layout and the program of the step; no tensor exists
dry run     the real code on fake tensors: every storage and every message counted, nothing computed
measured    the run under mpirun: storages that exist, bytes that the backend posted, events of the allocator
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardlab.engine.dry import dry_run
from shardlab.plan import MeshShape, Plan, compile_plan, footprint, state_bytes, wire_bytes
from shardlab.plan.config import read_config_file
from shardlab.plan.presets import load_model

__all__ = ["compare", "print_table"]

Row = tuple[str, int, int, int]  # what, predicted, dry run, measured; bytes of rank 0


def plan_of(config_path: Path, model: str, ranks: int) -> Plan:
    """The plan that a configuration and a number of ranks amount to."""
    config, spec = read_config_file(config_path), load_model(model)
    batch = config.batch(ranks)
    return Plan(
        model=spec,
        mesh=MeshShape({"dp": ranks}),
        zero=config.zero_optimization.stage,
        precision=config.precision,
        optimizer=config.optimizer.name,
        micro_batch=batch.micro,
        accumulation=batch.accumulation,
        seq=spec.config["positions"],
    )


def compare(found: dict[str, Any]) -> list[Row]:
    """Rows of state bytes, wire bytes and peak memory of rank 0 for a run whose measurements are ``found``."""
    plan = plan_of(Path(found["config"]), found["model"], found["ranks"])
    program = tuple(compile_plan(plan))
    state, wire, peak = state_bytes(plan), wire_bytes(program, plan), footprint(program, plan).total_bytes
    dry, measured = dry_run(plan), found["measured"]
    rows = [(f"state: {key}", state[key], dry.state[key], measured["state"][key]) for key in state]
    rows += [
        (f"sent over {axis}", wire.get(axis, 0), dry.wire_bytes.get(axis, 0), measured["wire"][axis])
        for axis in measured["wire"]
    ]
    rows.append(("peak of a step", peak, dry.peak_bytes, measured["peak_bytes"]))
    return rows


def print_table(rows: list[Row]) -> None:
    """Print the rows in bytes, with what the measurement says of the prediction."""
    table = Table(title="bytes of rank 0 in one step", title_justify="left")
    table.add_column("")
    for name in ("predicted", "dry run", "measured", "difference"):
        table.add_column(name, justify="right")
    for what, predicted, dry, measured in rows:
        table.add_row(what, f"{predicted:,}", f"{dry:,}", f"{measured:,}", _verdict(predicted, dry, measured))
    Console().print(table)


def _verdict(predicted: int, dry: int, measured: int) -> str:
    if predicted == dry == measured:
        return "equal"
    return f"{(measured - predicted) / predicted:+.1%}" if predicted else f"{measured - predicted:+,} bytes"
