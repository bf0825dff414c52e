"""The loss curve of a run as a picture."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["draw_losses"]


def draw_losses(found: dict[str, Any], path: Path) -> None:
    """Draw the training loss over tokens, with the held-out loss and the bigram entropy, into a PNG."""
    per_step = found["tokens"] / found["steps"]
    tokens = [per_step * (step + 1) / 1000 for step in range(found["steps"])]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(tokens, found["losses"], linewidth=0.8, label="training")
    axes.axhline(
        found["bigram_entropy"], color="tab:gray", linestyle="--", label="entropy of a byte given the one before"
    )
    axes.plot(tokens[-1], found["held_out_loss"], "o", color="tab:red", label=f"held out: {found['held_out_loss']:.3f}")
    title = f"{found['ranks']} ranks, {found['text'].split(':')[0]}"
    axes.set(xlabel="thousand tokens", ylabel="loss (nats per byte)", title=title)
    axes.title.set_fontsize(9)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
