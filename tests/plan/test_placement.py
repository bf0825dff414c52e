"""How a parameter is cut along an axis."""

import pytest

from shardlab.plan import ParamInfo, Partial, Replicate, Shard, local_shape


def test_ranges_cover_without_overlap() -> None:
    for blocks in (1, 3):
        shard = Shard("tp", 0, blocks)
        got = sorted(i for index in range(4) for a, b in shard.ranges(24, 4, index) for i in range(a, b))
        assert got == list(range(24))


def test_blocks_keep_query_key_value_together() -> None:
    assert Shard("tp", 0, 3).ranges(12, 2, 1) == ((2, 4), (6, 8), (10, 12))


def test_uneven_cut_is_an_error_with_its_numbers() -> None:
    with pytest.raises(ValueError, match=r"length 10 .*axis 'tp' of size 4"):
        Shard("tp", 0).ranges(10, 4, 0)


def test_local_shape() -> None:
    assert local_shape((8, 6), (Shard("tp", 1), Replicate("dp")), {"tp": 3, "dp": 2}) == (8, 2)
    assert local_shape((8, 6), (Shard("tp", 1),), {}) == (8, 6)
    with pytest.raises(ValueError, match="dim 2"):
        local_shape((8, 6), (Shard("tp", 2),), {"tp": 2})


def test_info() -> None:
    info = ParamInfo("w", (Shard("tp", 0), Partial("cp")))
    assert info.along("cp") == Partial("cp") and info.along("dp") == Replicate("dp")
    with pytest.raises(ValueError, match="two placements on axis 'tp'"):
        ParamInfo("w", (Shard("tp", 0), Replicate("tp")))
