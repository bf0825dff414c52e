"""The batch-size triple: any two settings give the third, contradictions name keys and numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.plan import BatchTriple, solve_batch

SOLVED = [
    ((32, None, None), (32, 8, 1)),
    ((None, 4, None), (16, 4, 1)),
    ((None, 4, 2), (32, 4, 2)),
    ((32, 4, None), (32, 4, 2)),
    ((32, None, 2), (32, 4, 2)),
]
REFUSED = [
    ((32, 4, 3), r"32 is not .*4 x .*3 x 4 ranks .*= 48"),
    ((30, 4, None), r"30 is not divisible by .*4 x 4 ranks .*nearest: 16 or 32"),
    ((None, None, 2), r"give train_batch_size or train_micro_batch_size_per_gpu"),
    ((None, None, None), r"give train_batch_size or train_micro_batch_size_per_gpu"),
]


@pytest.mark.parametrize(("given_", "want"), SOLVED)
def test_solved(given_: tuple[int | None, ...], want: tuple[int, int, int]) -> None:
    assert solve_batch(*given_, dp=4) == BatchTriple(*want)


@pytest.mark.parametrize(("given_", "message"), REFUSED)
def test_refused(given_: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve_batch(*given_, dp=4)


def test_sizes_below_one() -> None:
    with pytest.raises(ValueError, match="train_batch_size is 0"):
        solve_batch(0, 1, 1, 1)
    with pytest.raises(ValueError, match=r"nearest: 4"):
        solve_batch(3, None, None, 4)


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_any_two_give_the_third(micro: int, accumulation: int, dp: int) -> None:
    whole = BatchTriple(micro * accumulation * dp, micro, accumulation)
    assert solve_batch(whole.train, micro, None, dp) == whole
    assert solve_batch(whole.train, None, accumulation, dp) == whole
    assert solve_batch(None, micro, accumulation, dp) == whole
