import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.zero.pool import BufferPool

CPU = torch.device("cpu")
F32 = torch.float32


def test_a_buffer_is_kept_for_the_next_borrower() -> None:
    pool = BufferPool(CPU)
    pool.register(F32, 8)
    pool.register(F32, 8)
    first = pool.take(F32, 8)
    address = first.data_ptr()
    pool.give(first)
    del first
    assert pool.kept_bytes == 32
    assert pool.take(F32, 8).data_ptr() == address
    assert pool.kept_bytes == 0


def test_a_size_that_one_unit_has_is_not_kept() -> None:
    pool = BufferPool(CPU)
    pool.register(F32, 8)
    pool.give(pool.take(F32, 8))
    assert pool.kept_bytes == 0
    assert pool.lost == 0


def test_dtypes_do_not_mix() -> None:
    pool = BufferPool(CPU)
    for dtype in (F32, torch.bfloat16):
        pool.register(dtype, 8)
        pool.register(dtype, 8)
    pool.give(pool.take(F32, 8))
    assert pool.take(torch.bfloat16, 8).dtype is torch.bfloat16
    assert pool.kept_bytes == 32


def test_a_buffer_that_somebody_holds_is_never_lent_again() -> None:
    pool = BufferPool(CPU)
    pool.register(F32, 8)
    pool.register(F32, 8)
    buffer = pool.take(F32, 8)
    held = buffer[2:4].fill_(5.0)
    pool.give(buffer)
    del buffer
    assert pool.lost == 1
    pool.take(F32, 8).zero_()
    assert held.tolist() == [5.0, 5.0]


def test_bytes_lent_and_their_peak() -> None:
    pool = BufferPool(CPU)
    one, two = pool.take(F32, 8), pool.take(torch.bfloat16, 4)
    assert (pool.lent_bytes, pool.peak_bytes) == (40, 40)
    pool.give(one)
    assert (pool.lent_bytes, pool.peak_bytes) == (8, 40)
    pool.give(two)
    assert (pool.lent_bytes, pool.peak_bytes) == (0, 40)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=40))
def test_no_two_borrowers_share_memory(actions: list[tuple[bool, int]]) -> None:
    pool = BufferPool(CPU)
    for numel in (1, 2, 3) * 2:
        pool.register(F32, numel)
    lent: list[torch.Tensor] = []
    for borrow, numel in actions:
        if borrow:
            lent.append(pool.take(F32, numel))
        elif lent:
            pool.give(lent.pop(0))
        assert len({x.data_ptr() for x in lent}) == len(lent)
        assert pool.lent_bytes == 4 * sum(x.numel() for x in lent)
    assert pool.lost == 0
