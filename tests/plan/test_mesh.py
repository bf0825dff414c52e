"""Ranks and coordinates are a bijection; groups over any axes partition the ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.plan import MeshShape


@st.composite
def meshes(draw: st.DrawFn) -> MeshShape:
    names = draw(st.lists(st.sampled_from(["pp", "dp", "cp", "tp", "rows"]), unique=True))
    axes = {name: draw(st.integers(1, 4)) for name in names}
    if "dp" in axes and draw(st.booleans()):
        axes["ep"] = draw(st.sampled_from([n for n in range(1, 5) if axes["dp"] % n == 0]))
    return MeshShape(axes)


@settings(deadline=None)
@given(meshes())
def test_bijection(mesh: MeshShape) -> None:
    seen = {tuple(mesh.coords(rank).items()) for rank in range(mesh.size)}
    assert len(seen) == mesh.size
    assert all(mesh.rank(mesh.coords(rank)) == rank for rank in range(mesh.size))


@settings(deadline=None)
@given(meshes(), st.sets(st.sampled_from(["pp", "dp", "cp", "tp", "ep", "edp", "rows"])))
def test_groups_partition_and_agree(mesh: MeshShape, axes: set[str]) -> None:
    groups = mesh.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert list(group) == sorted(group) and len(group) == mesh.axis_size(*axes)
        assert all(mesh.group(rank, *axes) == group for rank in group)


def test_tp_is_fastest_and_pp_slowest() -> None:
    mesh = MeshShape({"tp": 2, "dp": 2, "pp": 2})
    assert mesh.axes == ("pp", "dp", "tp") and mesh.size == 8
    assert mesh.coords(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert mesh.group(5, "tp") == (4, 5)
    assert mesh.group(5, "pp") == (1, 5)
    assert mesh.group(0, "dp", "tp") == (0, 1, 2, 3)


def test_ep_is_the_inner_factor_of_dp() -> None:
    mesh = MeshShape({"dp": 6, "ep": 3, "tp": 2})
    assert mesh.size == 12
    assert mesh.coords(8) == {"dp": 4, "tp": 0, "ep": 1}
    assert mesh.group(0, "ep") == (0, 2, 4)
    assert mesh.group(0, "edp") == (0, 6)
    assert mesh.group(0, "dp") == (0, 2, 4, 6, 8, 10)


def test_absent_axis_is_a_group_of_one() -> None:
    mesh = MeshShape({"dp": 4})
    assert mesh.group(2, "tp") == (2,) and mesh.axis_size("tp") == 1
    assert MeshShape({}).size == 1 and MeshShape({}).group(0, "dp") == (0,)


def test_custom_axes_keep_their_order() -> None:
    assert MeshShape({"rows": 2, "cols": 3}).coords(4) == {"rows": 1, "cols": 1}


def test_errors() -> None:
    with pytest.raises(ValueError, match="'dp' has size 0"):
        MeshShape({"dp": 0})
    with pytest.raises(ValueError, match="ep 3 does not divide dp 4"):
        MeshShape({"dp": 4, "ep": 3})
    with pytest.raises(ValueError, match=r"rank 4 is outside 0\.\.3"):
        MeshShape({"dp": 4}).coords(4)
    with pytest.raises(ValueError, match="no axis 'tp'"):
        MeshShape({"dp": 4}).rank({"tp": 0})
    with pytest.raises(ValueError, match="coordinate 4"):
        MeshShape({"dp": 4}).rank({"dp": 4})
    with pytest.raises(ValueError, match="contradicts"):
        MeshShape({"dp": 4, "ep": 2}).rank({"dp": 2, "ep": 1})
    with pytest.raises(ValueError, match="'edp'"):
        MeshShape({"edp": 2})
