"""The main job, short: it runs under mpirun, learns, and its bytes are the predicted ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

ROOT = Path(__file__).parents[2]


def train(folder: Path, *arguments: str) -> tuple[dict, str]:
    """Run the example on two ranks; returns what it wrote and printed."""
    text = folder / "text.txt"
    text.write_text("\n".join(topics.values()))
    command = ["mpirun", "-n", "2", sys.executable, str(ROOT / "examples/train_gpt.py"), "--text", str(text)]
    done = subprocess.run(
        [*command, "--out", str(folder / "out"), "--sample", "8", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "out/measured.json").read_text()), done.stdout


def test_main_job_learns_and_is_predicted_to_the_byte(tmp_path: Path) -> None:
    found, printed = train(tmp_path, "--tokens", str(20 * 2048))
    assert found["steps"] == 20
    assert found["losses"][0] > 5.3
    assert found["held_out_loss"] < 4.6
    rows = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│")]
    exact = [row for row in rows if not row[0].strip().startswith("peak")]
    assert len(exact) == 6
    for name, predicted, dry, measured, verdict in exact:
        assert verdict.strip() == "equal", name
        assert predicted.strip() == dry.strip() == measured.strip()
    (peak,) = [row for row in rows if row[0].strip().startswith("peak")]
    predicted_bytes, measured_bytes = (int(peak[at].replace(",", "")) for at in (1, 3))
    assert abs(measured_bytes - predicted_bytes) < 0.1 * predicted_bytes
    assert (tmp_path / "out/loss.png").stat().st_size > 5000


def test_a_misspelt_key_is_named_by_every_rank(tmp_path: Path) -> None:
    config = json.loads((ROOT / "examples/configs/zero3.json").read_text())
    config["gradient_cliping"] = config.pop("gradient_clipping")
    faulty = tmp_path / "faulty.json"
    faulty.write_text(json.dumps(config))
    done = subprocess.run(
        ["mpirun", "-n", "2", sys.executable, str(ROOT / "examples/train_gpt.py"), "--config", str(faulty)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "gradient_cliping" in done.stderr
    assert "gradient_clipping" in done.stderr
