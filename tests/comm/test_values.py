"""Numbers of real, fake and meta tensors."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm.values import has_values, host_list, host_value


def test_real_tensors_have_values() -> None:
    x = torch.tensor([[1.5, 2.0]])
    assert has_values(x) and host_value(x[0, 0], 7) == 1.5 and host_list(x, []) == [[1.5, 2.0]]
    assert host_value(torch.tensor(True), False) is True


def test_fake_and_meta_tensors_give_the_default() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    for x in (fake, torch.ones(2, device="meta")):
        assert not has_values(x) and host_value(x[0], 7) == 7 and host_list(x, [3]) == [3]
