"""agree: ranks that are about to do different things raise everywhere, and say what."""

import pytest
import torch

from shardlab.comm import DivergedError, Mesh, agree, recording, run_ranks


def test_agreement_costs_one_control_message_of_32_bytes_a_rank() -> None:
    def main(mesh: Mesh) -> list[tuple[str, int]]:
        with recording(mesh.recorder) as ledger:
            agree(mesh["dp"], "gather", "blocks.0", 12)
            agree(mesh["ep"], "gather", "blocks.0", 12)
        assert mesh.recorder.wire_bytes.total() == 0
        return [(span.op, span.payload_bytes // mesh.size) for span in ledger]

    assert run_ranks({"dp": 3}, main) == [[("control", 32)]] * 3


@pytest.mark.parametrize(
    "other",
    [("gather", "blocks.1", 12), ("reduce", "blocks.0", 12), ("gather", "blocks.0", 13), ("gather", "ü" * 300, 12)],
    ids=["name", "operation", "count", "long name"],
)
def test_a_rank_that_differs_raises_everywhere_and_all_are_named(other: tuple[str, str, int]) -> None:
    def main(mesh: Mesh) -> str:
        mine = other if mesh.rank == 1 else ("gather", "blocks.0", 12)
        with pytest.raises(DivergedError) as caught:
            agree(mesh["dp"], *mine)
        x = torch.ones(1)
        mesh["dp"].all_reduce(x)  # the group still works
        assert x.item() == 3
        return str(caught.value)

    texts = run_ranks({"dp": 3}, main)
    assert len(set(texts)) == 1
    op, name, _ = other
    assert "rank 0: gather 'blocks.0' (12 elements)" in texts[0] and "rank 2: gather 'blocks.0'" in texts[0]
    assert f"rank 1: {op} '{name}"[:60] in texts[0]


def test_all_different() -> None:
    def main(mesh: Mesh) -> None:
        agree(mesh["dp"], "gather", f"layer {mesh.rank}", 1)

    with pytest.raises(DivergedError, match=r"rank 0: gather 'layer 0'.*rank 3: gather 'layer 3'"):
        run_ranks({"dp": 4}, main)
