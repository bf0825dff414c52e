"""Machines by name: JSON files beside this one, and `this`, the machine one sits at."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from pathlib import Path

from shardlab.plan import Machine


def machine_names() -> tuple[str, ...]:
    """Return the names of all machines, `this` last."""
    files = resources.files("shardlab.sim").joinpath("machines").iterdir()
    return (*sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")), "this")


def load_machine(name: str) -> Machine:
    """Return a machine by name, or read it from a JSON file.

    Args:
        name: A name of `machine_names`, or a path that ends in `.json`.

    Raises:
        ValueError: If there is no such machine; the message holds the nearest name.
        OSError: If a file cannot be read.
    """
    if name == "this":
        from shardlab.sim.here import this_machine

        return this_machine()
    if name.endswith(".json"):
        text = Path(name).read_text(encoding="utf-8")
    elif name in machine_names():
        text = resources.files("shardlab.sim").joinpath("machines", f"{name}.json").read_text(encoding="utf-8")
    else:
        near = difflib.get_close_matches(name.lower(), machine_names(), n=1, cutoff=0.3)
        hint = f"; nearest: {near[0]!r}" if near else ""
        raise ValueError(f"device {name!r} is not known{hint}; known: {' '.join(machine_names())}")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{name}: want a JSON object that describes a machine, got {type(data).__name__}")
    return Machine.from_dict(data)
