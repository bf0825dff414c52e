"""Small plans that several tests share, and strategies over them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shardlab.plan import MeshShape, ModelSpec, Plan, Precision, gpt, llama, mlp

MODELS: dict[str, ModelSpec] = {
    "gpt": gpt(layers=3, hidden=8, heads=2, vocab=11, positions=4),
    "gpt-untied": gpt(layers=2, hidden=8, heads=2, vocab=11, positions=4, tied=False),
    "llama": llama(layers=2, hidden=8, heads=2, ffn=24, vocab=13),
    "llama-tied": llama(layers=2, hidden=8, heads=2, ffn=24, vocab=13, tied=True),
    "mlp": mlp(widths=[5, 7, 3]),
}
BF16 = Precision("bf16", "fp32", "fp32", "fp32")


def make(model: str = "gpt", dp: int = 2, **more: Any) -> Plan:
    """A plan of a small model."""
    seq = 1 if model == "mlp" else 4
    return Plan(MODELS[model], MeshShape({"dp": dp}), **{"seq": seq, "micro_batch": 2, **more})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any small plan."""
    name = draw(st.sampled_from(sorted(MODELS)))
    return make(
        name,
        draw(st.integers(1, 5)),
        zero=draw(st.integers(0, 3)),
        precision=draw(st.sampled_from([Precision(), BF16, Precision.named("bf16")])),
        accumulation=draw(st.integers(1, 3)),
        recompute="none" if name == "mlp" else draw(st.sampled_from(["none", "full"])),
        prefetch=draw(st.booleans()),
    )
