"""A layout is a partition: shards are disjoint, they cover, and every parameter is aligned."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.plan import Layout, ParamSpec, itemsize

shapes = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=12)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dtype = draw(st.sampled_from(["fp32", "bf16", "int8", "fp64"]))
    specs = [ParamSpec(f"p{at}", shape, dtype) for at, shape in enumerate(draw(shapes))]
    return Layout.of(specs, draw(st.integers(1, 9)), draw(st.sampled_from([8, 16, 64, 256])))


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_shards_are_disjoint_and_cover(layout: Layout) -> None:
    owned: dict[str, list[int]] = {spec.name: [] for spec in layout.specs}
    for index in range(layout.shards):
        for piece in layout.pieces(index):
            assert piece.start < piece.stop
            assert piece.flat_start == layout.offset(piece.name) + piece.start
            assert index * layout.shard_numel <= piece.flat_start
            assert piece.flat_start + piece.numel <= (index + 1) * layout.shard_numel
            owned[piece.name] += range(piece.start, piece.stop)
    for spec in layout.specs:
        assert owned[spec.name] == list(range(spec.numel))


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_aligned_and_padding_adds_up(layout: Layout) -> None:
    assert layout.shard_numel % layout.align == 0
    assert layout.numel == layout.shards * layout.shard_numel
    assert layout.pad_bytes == (layout.numel - sum(s.numel for s in layout.specs)) * itemsize(layout.dtype) >= 0
    assert all(layout.offset(spec.name) % layout.align == 0 for spec in layout.specs)
    ends = [layout.offset(spec.name) + spec.numel for spec in layout.specs if spec.numel]
    assert layout.numel >= max(ends, default=0)
    smaller = layout.shard_numel - layout.align
    assert layout.shard_numel == 0 or smaller * layout.shards < max(ends)


def test_by_hand() -> None:
    layout = Layout.of([ParamSpec("w", (100, 3), "fp32"), ParamSpec("b", (100,), "fp32")], shards=4)
    assert (layout.align, layout.offset("b"), layout.shard_numel, layout.pad_bytes) == (16, 304, 112, 192)
    assert [(p.name, p.start, p.stop, p.flat_start) for p in layout.pieces(2)] == [
        ("w", 224, 300, 224),
        ("b", 0, 32, 304),
    ]


def test_scalar_and_empty_parameters() -> None:
    layout = Layout.of([ParamSpec("e", (0, 5), "fp32"), ParamSpec("s", (), "fp32")], shards=2)
    assert layout.shard_numel == 16
    assert [p.name for p in layout.pieces(0)] == ["s"] and layout.pieces(1) == ()
    assert Layout.of([ParamSpec("e", (0,), "bf16")], 4).numel == 0


def test_errors_name_the_parameter() -> None:
    with pytest.raises(ValueError, match="'b' is bf16 but 'a' is fp32"):
        Layout.of([ParamSpec("a", (1,), "fp32"), ParamSpec("b", (1,), "bf16")], 2)
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Layout.of([ParamSpec("a", (1,), "fp32"), ParamSpec("a", (1,), "fp32")], 2)
    with pytest.raises(ValueError, match="at least one shard, not 0"):
        Layout.of([ParamSpec("a", (1,), "fp32")], 0)
    with pytest.raises(ValueError, match="at least one parameter"):
        Layout.of([], 1)
    with pytest.raises(ValueError, match="align_bytes 6"):
        Layout.of([ParamSpec("a", (1,), "fp32")], 1, align_bytes=6)
    with pytest.raises(IndexError, match=r"shard 2 is outside 0\.\.1"):
        Layout.of([ParamSpec("a", (1,), "fp32")], 2).pieces(2)
    with pytest.raises(ValueError, match=r"'x'.*negative"):
        ParamSpec("x", (-1,), "fp32")


def test_param_spec_reads_torch_names() -> None:
    spec = ParamSpec("w", (2, 3), "torch.bfloat16")
    assert (spec.dtype, spec.numel, spec.nbytes) == ("bf16", 6, 12)
