"""The table of README.md says of every case which test it became, or which part it waits for."""

import re
from pathlib import Path

import yaml

HERE = Path(__file__).parent


def test_every_case_has_a_row_that_tells_the_truth() -> None:
    ids = [case["id"] for case in yaml.safe_load((HERE / "cases.yaml").read_text())]
    rows = dict(re.findall(r"^\| ([A-Z]{3}-\d\d) \| (.*?) \|", (HERE / "README.md").read_text(), re.MULTILINE))
    assert len(ids) == 90 and list(rows) == ids
    tested: dict[str, set[str]] = {}
    for path in HERE.glob("test_*.py"):
        for area, number in re.findall(r"^def test_([A-Z]{3})_(\d\d)_", path.read_text(), re.MULTILINE):
            tested.setdefault(f"{area}-{number}", set()).add(path.name)
    assert set(tested) <= set(ids)
    for case in ids:
        if case in tested:
            assert set(re.findall(r"`(.*?)`", rows[case])) == tested[case], case
        else:
            assert rows[case].startswith("waits for "), case
