"""The report comes out whatever is missing, and says what to do about it."""

import json
import subprocess
import sys

import pytest
import typer

from shardlab.engine import found
from shardlab.engine.report import Line, Report, collect, report


def test_each_section_is_there_and_text_and_json_agree() -> None:
    result = collect()
    whole = json.loads(result.to_json())
    assert list(whole) == ["schema", "verdict", "inputs", "result", "assumptions"]
    assert list(whole["result"]) == ["versions", "packages", "kernels", "transports", "machine"]
    text = result.to_text()
    for lines in whole["result"].values():
        for line in lines:
            assert line["name"] in text
            assert line["detail"] in text
            assert line["mend"] in text


def test_here_everything_required_is_there() -> None:
    result = collect()
    assert result.broken == ()
    assert result.to_text().startswith("ok ")
    by_name = {line.name: line for line in result.lines}
    assert by_name["torch"].detail.startswith(found.version("torch") or "?")
    assert by_name["shardlab.plan"].state == "ok"
    assert by_name["shardlab.pipeline"].state == "not built"


def test_a_missing_requirement_is_broken_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = found.version
    monkeypatch.setattr(found, "version", lambda name: None if name == "torch" else installed(name))
    with pytest.raises(typer.Exit) as end:
        report(as_json=False)
    assert end.value.exit_code == 1
    text = capsys.readouterr().out
    assert text.startswith("broken    torch\n")
    assert "pip install -c constraints.txt 'torch>=2.13'" in text


def test_a_requirement_that_is_too_old_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = found.version
    monkeypatch.setattr(found, "version", lambda name: "2.9.1" if name == "torch" else installed(name))
    (line,) = collect().broken
    assert (line.name, line.detail) == ("torch", "2.9.1 is too old")


def test_missing_tools_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compiler", "cuda_compiler", "gpu", "mpi_launcher"):
        monkeypatch.setattr(found, name, lambda: None)
    result = collect()
    assert result.broken == ()
    missing = {line.name: line.mend for line in result.lines if line.state == "missing"}
    assert missing["mpi"] == "pip install mpich"
    assert missing["C++ compiler"] == "install g++ or clang++"
    assert "CUDA_HOME" in missing["CUDA compiler"]
    assert "GPU" in missing


def test_json_gives_the_verdict_broken() -> None:
    whole = json.loads(Report((Line("versions", "torch", "broken", "not found", "install it"),)).to_json())
    assert whole["verdict"] == "broken"
    assert whole["result"]["versions"] == [
        {"name": "torch", "state": "broken", "detail": "not found", "mend": "install it"}
    ]


def test_it_imports_neither_torch_nor_mpi() -> None:
    code = (
        "import sys; from shardlab.engine.report import collect; collect(); print({'torch', 'mpi4py'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
