"""A machine's numbers each have a source."""

import json

import pytest

from shardlab.plan import Figure, Machine

FIGURE = {"value": 10.0, "source": "assumed", "note": "for the test"}
LINK = {"bytes_per_s": FIGURE, "latency_s": FIGURE}
DATA = {
    "name": "box",
    "title": "A box",
    "memory_bytes": {"value": 1000, "source": "measured"},
    "memory_bytes_per_s": FIGURE,
    "peak_flops_per_s": {"fp32": FIGURE},
    "matmul_fraction": FIGURE,
    "devices_per_node": FIGURE,
    "intra_node": LINK,
    "inter_node": LINK,
}


def test_json_both_ways() -> None:
    machine = Machine.from_dict(DATA)
    assert Machine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine
    assert {figure.source for figure in machine.figures().values()} == {"assumed", "measured"}
    assert len(machine.figures()) == 9


def test_ranks_of_one_node_share_a_host() -> None:
    own, shared = Machine.from_dict(DATA), Machine.from_dict({**DATA, "shared": True})
    assert (own.capacity_bytes(4), shared.capacity_bytes(4)) == (1000, 250)
    assert (own.share(4), shared.share(4)) == (1, 4)


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"value": 1, "source": "guess"}, "source 'guess'"),
        ({"value": 1, "source": "data sheet"}, "needs the url"),
        ({"value": 1, "source": "assumed"}, "needs a note"),
        ({"value": 0, "source": "measured"}, "positive"),
    ],
)
def test_a_figure_without_a_source_is_refused(figure: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Figure(**figure)  # type: ignore[arg-type]


def test_errors_name_the_machine_and_field() -> None:
    with pytest.raises(ValueError, match="machine 'box' has no field 'inter_node'"):
        Machine.from_dict({k: v for k, v in DATA.items() if k != "inter_node"})
    with pytest.raises(ValueError, match=r"machine 'box'.*colour"):
        Machine.from_dict({**DATA, "matmul_fraction": {**FIGURE, "colour": 1}})
