"""What all backends share beside the collectives, which the contract covers."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm import dry_mesh
from shardlab.comm.base import BaseCommunicator, blocks, same_memory


def test_blocks_are_consecutive_views() -> None:
    x = torch.arange(6.0)
    cut = blocks(x, [1, 0, 3, 2])
    assert [b.tolist() for b in cut] == [[0], [], [1, 2, 3], [4, 5]]
    cut[2].fill_(9)
    assert x.tolist() == [0, 9, 9, 9, 4, 5]


@pytest.mark.parametrize("fake", [False, True])
def test_same_memory_is_the_same_elements(fake: bool) -> None:
    def check() -> None:
        x = torch.zeros(8)
        assert same_memory(x[2:4], x[2:4].view(2)) and same_memory(x, x.detach())
        assert not same_memory(x[2:4], x[4:6]) and not same_memory(x, torch.zeros(8))

    if fake:
        with FakeTensorMode():
            check()
    else:
        check()


def test_a_backend_must_give_all_rounds() -> None:
    with pytest.raises(TypeError, match="_exchange"):
        BaseCommunicator((0,), ("dp",), 0, dry_mesh({"dp": 1}).recorder, None)  # type: ignore[abstract, arg-type]


def test_a_wrong_call_is_not_numbered() -> None:
    comm = dry_mesh({"dp": 2})["dp"]
    assert isinstance(comm, BaseCommunicator)
    with pytest.raises(ValueError, match="bool"):
        comm.all_reduce(torch.zeros(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="itself"):
        comm.send(torch.zeros(2), 0)
    assert (comm.entered, comm.sent.total(), comm.recorder.calls.total()) == (0, 0, 0)
    comm.barrier("x")
    assert comm.entered == 1
