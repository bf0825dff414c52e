"""Mesh: groups by axis name, over a world that only notes what is connected."""

import pytest
import torch

from shardlab.comm import Communicator, Mesh, Recorder, dry_mesh, run_ranks
from shardlab.comm.dry import DryWorld
from shardlab.plan.mesh import MeshShape


class Noting(DryWorld):
    """Notes the groups in the order in which they are connected."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.connected: list[tuple[tuple[int, ...], tuple[str, ...]]] = []

    def group(self, ranks: tuple[int, ...], axes: tuple[str, ...]) -> Communicator:  # type: ignore[override]
        self.connected.append((ranks, axes))
        return super().group(ranks, axes)


def test_axes_are_connected_at_once_in_the_order_of_the_shape() -> None:
    world = Noting(5, 8)
    Mesh(MeshShape({"tp": 2, "dp": 2, "pp": 2}), world)
    assert world.connected == [((1, 5), ("pp",)), ((5, 7), ("dp",)), ((4, 5), ("tp",))]


def test_a_group_is_connected_once() -> None:
    world = Noting(0, 4)
    mesh = Mesh(MeshShape({"pp": 2, "dp": 2}), world)
    assert mesh["dp"] is mesh["dp"] and mesh["pp", "dp"] is mesh["pp", "dp"]
    assert world.connected[2:] == [((0, 1, 2, 3), ("pp", "dp"))]


def test_absent_axes_make_no_difference() -> None:
    mesh = dry_mesh({"dp": 4}, 2)
    assert mesh["tp"].ranks == (2,) and mesh["dp", "cp"].ranks == (0, 1, 2, 3)
    assert mesh["dp", "cp"].axes == ("dp", "cp")


def test_ep_lies_inside_dp() -> None:
    mesh = dry_mesh({"dp": 4, "ep": 2}, 2)
    assert mesh["dp"].ranks == (0, 1, 2, 3) and mesh["ep"].ranks == (2, 3) and mesh["edp"].ranks == (0, 2)


def test_index_is_the_position_in_the_group() -> None:
    def main(mesh: Mesh) -> tuple[int, int, int]:
        return mesh["pp"].index, mesh["dp"].index, mesh["pp", "dp"].index

    assert run_ranks({"pp": 2, "dp": 3}, main) == [(p, d, 3 * p + d) for p in range(2) for d in range(3)]


def test_it_passes_on_what_its_world_knows() -> None:
    mesh = dry_mesh({"dp": 4}, 2)
    assert (mesh.rank, mesh.size, mesh.device) == (2, 4, torch.device("cpu"))
    assert isinstance(mesh.recorder, Recorder) and mesh.recorder is mesh["dp"].recorder is mesh["tp"].recorder
    assert repr(mesh) == "Mesh(MeshShape(dp 4), rank 2)"


def test_a_shape_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 4 ranks, the world has 3"):
        Mesh(MeshShape({"dp": 4}), DryWorld(0, 3))


def test_a_misspelt_axis_is_no_group_of_one() -> None:
    """It would be one by mistake, and ranks would train apart without a word."""

    def body(mesh: Mesh) -> list[int]:
        for name in ("data", "pd", "DP"):
            with pytest.raises(ValueError, match=rf"no axis '{name}'; its axes are dp"):
                mesh[name]
        with pytest.raises(ValueError, match="Did you mean 'dp'"):
            mesh["dp", "pd"]
        return [mesh["tp"].size, mesh["pp"].size, mesh["dp", "cp"].size]

    assert run_ranks({"dp": 2}, body) == [[1, 1, 2]] * 2
