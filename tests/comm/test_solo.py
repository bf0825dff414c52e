"""A world of one rank."""

import pytest
import torch

from shardlab.comm.solo import SoloWorld
from shardlab.plan.mesh import MeshShape
from tests.comm.contract import CONTRACT


@pytest.mark.parametrize("fn", CONTRACT, ids=lambda fn: fn.__name__)
def test_contract(fn) -> None:
    mesh = SoloWorld().mesh(MeshShape({"dp": 1}))
    assert fn(mesh) is None


def test_meshes_are_kept() -> None:
    world = SoloWorld()
    assert world.mesh(MeshShape({"dp": 1})) is world.mesh(MeshShape({"dp": 1}))
    assert world.mesh(MeshShape({"dp": 1})) is not world.mesh(MeshShape({"tp": 1}))


def test_no_message_is_ever_posted() -> None:
    comm = SoloWorld().mesh(MeshShape({"dp": 1}))["dp"]
    x = torch.ones(3)
    for post in (
        lambda: comm._exchange([x], [x]),
        lambda: comm._gather([x], second=False),
        lambda: comm._broadcast(x, 0),
        lambda: comm._barrier("b"),
        lambda: comm._send(x, 0, 0),
        lambda: comm._recv(x, 0, 0),
    ):
        with pytest.raises(AssertionError, match="has one rank and posts no messages"):
            post()
