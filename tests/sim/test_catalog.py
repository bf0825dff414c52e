"""Machine files: all names, every number with its source."""

import json
from pathlib import Path

import pytest

from shardlab.sim import load_machine, machine_names

NAMES = ["v100-16g", "v100-32g", "a100-40g", "a100-80g", "h100-80g", "h200-141g", "b200", "mi250x", "mi300x", "rtx4090",
         "ascend-910b", "gaudi2", "this"]  # fmt: skip


def test_all_names_are_there() -> None:
    assert sorted(machine_names()) == sorted(NAMES) and machine_names()[-1] == "this"


@pytest.mark.parametrize("name", NAMES[:-1])
def test_every_figure_has_a_source(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    for field, figure in machine.figures().items():
        assert figure.source in ("measured", "data sheet", "assumed"), field
        assert (figure.url.startswith("https://")) == (figure.source != "assumed"), field
        assert figure.note or figure.source == "data sheet", field
    assert 0.3 < machine.matmul_fraction.value <= 1
    assert machine.capacity_bytes(8) == int(machine.memory_bytes.value)


def test_capacities_are_those_of_the_names() -> None:
    for name, gb in (("v100-32g", 32), ("a100-40g", 40), ("a100-80g", 80), ("h100-80g", 80), ("h200-141g", 141)):
        assert 0.93 * gb * 2**30 <= load_machine(name).memory_bytes.value <= gb * 2**30


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'h100' is not known; nearest: 'h100-80g'"):
        load_machine("h100")
    with pytest.raises(OSError, match="nowhere"):
        load_machine(str(tmp_path / "nowhere.json"))
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**load_machine("b200").to_dict(), "name": "own"}))
    assert load_machine(str(path)).name == "own"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"own\.json: not JSON"):
        load_machine(str(path))
    path.write_text("[]")
    with pytest.raises(ValueError, match="got list"):
        load_machine(str(path))
