"""The text of the examples: its split, its batches, its entropy."""

import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from shakespeare import Text


def text() -> Text:
    return Text.of("test", bytes((7 * i * i + i // 3) % 61 + 32 for i in range(20_000)))


def test_the_split_covers_the_text_once() -> None:
    found = text()
    assert len(found.train) == 19_000
    assert len(found.held_out) == 1_000


def test_targets_are_the_next_bytes_and_batches_depend_on_step_and_rank() -> None:
    found = text()
    ids, targets = found.batch(step=3, rank=1, rows=4, seq=16)
    assert ids.shape == targets.shape == (4, 16)
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    again, _ = found.batch(step=3, rank=1, rows=4, seq=16)
    assert torch.equal(ids, again)
    for step, rank in ((3, 0), (4, 1)):
        other, _ = found.batch(step, rank, rows=4, seq=16)
        assert not torch.equal(ids, other)


def test_the_entropy_is_that_of_a_count_by_hand() -> None:
    found = text()
    whole = [*found.train.tolist(), *found.held_out.tolist()]
    pairs, firsts = Counter(pairwise(whole)), Counter(whole[:-1])
    by_hand = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / (len(whole) - 1)
    assert found.bigram_entropy == pytest.approx(by_hand, rel=1e-12)


def test_a_short_text_is_refused() -> None:
    with pytest.raises(ValueError, match="has 4 bytes"):
        Text.of("tiny.txt", b"tiny")
