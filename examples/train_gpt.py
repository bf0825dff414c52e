"""Train a byte-level GPT on Shakespeare under mpirun, with ZeRO from a JSON configuration.

    mpirun -n 2 python examples/train_gpt.py --config examples/configs/zero3.json

Every rank runs this file. Three calls make it a distributed program: `init`, `shard` and `clip_grad_norm_`; the rest is
the loop of a single process. At the end rank 0 sets what it predicted beside what it measured, and writes to runs/gpt/:
measured.json, loss.png and the text of a sample.
"""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler talks on stderr; read when torch is loaded
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compare import compare, print_table
from counts import StepCounts
from picture import draw_losses
from progress import Progress
from shakespeare import Text, load
from torch import nn
from torch.optim import Optimizer

from shardlab.comm import init
from shardlab.comm.mesh import Mesh
from shardlab.engine.build import build
from shardlab.engine.schedulers import make_scheduler
from shardlab.plan.config import Config, read_config_file
from shardlab.plan.presets import load_model
from shardlab.zero import Precision, clip_grad_norm_, shard

HERE = Path(__file__).parent
OPTIMIZERS: dict[str, type[Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "Adam": torch.optim.Adam,
    "SGD": torch.optim.SGD,
}


@dataclass
class Trainer:
    """One rank of a training run."""

    config: Config
    mesh: Mesh
    model: nn.Module
    optimizer: Optimizer
    text: Text
    seq: int
    bar: bool = False

    def train(self, tokens: int) -> dict[str, Any]:
        """Train on ``tokens`` tokens; returns losses, speed and the counts of one step."""
        comm, batch = self.mesh["dp"], self.config.batch(self.mesh["dp"].size)
        tokens_per_step = batch.train * self.seq
        steps = max(StepCounts.least_steps, tokens // tokens_per_step)
        scheduler = make_scheduler(self.config.scheduler, self.optimizer) if self.config.scheduler else None
        counts, losses, begin = StepCounts(self.mesh, self.model), [], time.perf_counter()
        with Progress(steps, comm.index == 0, self.bar) as progress:
            for step in range(steps):
                counts.before(step)
                loss = self.step(step)
                counts.after(step)
                if scheduler is not None:
                    scheduler.step()
                self.optimizer.zero_grad()
                losses.append(self.mean(loss))
                progress.show(step + 1, losses[-1], (step + 1) * tokens_per_step / (time.perf_counter() - begin))
        seconds = time.perf_counter() - begin
        done = steps * tokens_per_step
        speed = {"tokens": done, "seconds": seconds, "tokens_per_s": done / seconds}
        return {"losses": losses, "ranks": comm.size, "steps": steps, **speed, "measured": counts.found}

    def step(self, step: int) -> float:
        """One optimizer step; returns this rank's mean loss over its micro-batches."""
        comm, batch = self.mesh["dp"], self.config.batch(self.mesh["dp"].size)
        total = 0.0
        for micro in range(batch.accumulation):
            ids, targets = self.text.batch(step * batch.accumulation + micro, comm.index, batch.micro, self.seq)
            loss = self.model(ids, targets)
            (loss / batch.accumulation).backward()
            total += loss.item() / batch.accumulation
        if self.config.gradient_clipping:
            clip_grad_norm_(self.optimizer, self.config.gradient_clipping)
        self.optimizer.step()
        return total

    def mean(self, value: float) -> float:
        """The mean of a number over the ranks."""
        comm, total = self.mesh["dp"], torch.tensor([value], dtype=torch.float64)
        with self.mesh.recorder.labelled(control=True):
            comm.all_reduce(total)
        return total.item() / comm.size

    def held_out_loss(self, rows: int = 64) -> float:
        """Mean loss over held-out windows in nats per byte, ``rows`` of them on each rank."""
        comm = self.mesh["dp"]
        ids, targets = self.text.held_out_batch(rows * comm.size, self.seq)
        mine = slice(comm.index * rows, (comm.index + 1) * rows)
        with torch.no_grad():
            return self.mean(self.model(ids[mine], targets[mine]).item())

    def sample(self, length: int, temperature: float = 0.8) -> str:
        """Let the model go on after a speaker's name. All ranks draw the same bytes: a gather needs every rank."""
        generator = torch.Generator().manual_seed(self.config.seed)
        ids = torch.tensor([list(b"\n\nHAMLET.\n")])
        with torch.no_grad():
            for _ in range(length):
                scores = self.model(ids[:, -self.seq :])[0, -1].float() / temperature
                ids = torch.cat([ids, torch.multinomial(scores.softmax(0), 1, generator=generator).view(1, 1)], 1)
        return bytes(ids[0].tolist()).decode(errors="replace").strip()


def main() -> None:
    """Train, then show and write what came of it."""
    mesh = init({"dp": -1})  # first, so that whatever fails from here on ends the job with its message
    args = _arguments()
    config = read_config_file(args.config)
    spec = load_model(str(args.model))
    text = _text(mesh, args.text)
    torch.manual_seed(config.seed)
    stage, precision = config.zero_optimization.stage, Precision(**_zero_precision(config.precision))
    model, optimizer = shard(build(spec), _optimizer(config), mesh["dp"], stage=stage, precision=precision)
    trainer = Trainer(config, mesh, model, optimizer, text, spec.config["positions"], args.bar)
    found = trainer.train(args.tokens)
    found["held_out_loss"] = trainer.held_out_loss()
    found["sample"] = trainer.sample(args.sample)
    if mesh.rank == 0:
        found.update(text=text.source, bigram_entropy=text.bigram_entropy)
        found.update(config=str(args.config), model=str(args.model))
        _report(found, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=HERE / "configs/zero3.json", help="JSON in DeepSpeed's keys")
    parser.add_argument("--model", type=Path, default=HERE / "configs/byte-gpt.json", help="a Hugging Face config.json")
    parser.add_argument("--text", type=Path, help="a file to train on instead of Shakespeare")
    parser.add_argument("--tokens", type=int, default=983_040, help="tokens to train on, over all ranks")
    parser.add_argument("--sample", type=int, default=240, help="bytes of text to write at the end")
    parser.add_argument("--bar", action="store_true", help="draw a live progress bar though mpirun hides the terminal")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"), help="folder for results")
    return parser.parse_args()


def _text(mesh: Mesh, path: Path | None) -> Text:
    """The user's text, or Shakespeare, fetched by one rank and read by all."""
    if path is not None:
        return Text.of(str(path), path.read_bytes())
    if mesh.rank == 0:
        load()
    mesh["dp"].barrier("the text is here")
    return load()


def _zero_precision(precision: Any) -> dict[str, Any]:
    """A plan's precision as arguments of zero's: fp32 weights keep their own dtype."""
    use = {key: getattr(precision, key) for key in ("compute", "reduce", "accumulate", "master")}
    return use | {"compute": None if use["compute"] == "fp32" else use["compute"]}


def _optimizer(config: Config) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """The configured optimizer as a function of the whole parameters; norms and biases are not decayed."""
    kind, params = OPTIMIZERS[config.optimizer.type], config.optimizer.params
    keys = ("lr", "weight_decay", "momentum") if kind is torch.optim.SGD else ("lr", "weight_decay", "betas", "eps")
    settings = {key: getattr(params, key) for key in keys}

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        parameters = list(parameters)
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
        return kind([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], **settings)

    return make


def _report(found: dict[str, Any], out: Path) -> None:
    """Print the table, the verdict and the sample; write the files."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "measured.json").write_text(json.dumps(found, indent=1))
    (out / "sample.txt").write_text(found["sample"])
    draw_losses(found, out / "loss.png")
    print_table(compare(found))
    below = found["held_out_loss"] < found["bigram_entropy"]
    print(f"\nheld-out loss {found['held_out_loss']:.3f} nats per byte, {'below' if below else 'NOT below'}")
    print(f"              {found['bigram_entropy']:.3f}, the entropy of a byte given the one before it")
    print(f"{found['tokens']:,} tokens in {found['seconds']:.0f} s on {found['ranks']} ranks: {_speed(found)}")
    print(f"loss curve in {out / 'loss.png'}")
    print(f"\nwritten by the model after a speaker's name:\n\n{found['sample']} ...\n")


def _speed(found: dict[str, Any]) -> str:
    return f"{found['tokens_per_s']:,.0f} tokens/s, {1000 * found['seconds'] / found['steps']:,.0f} ms a step"


if __name__ == "__main__":
    main()
