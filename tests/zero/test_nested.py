"""Tensors inside whatever modules take and return."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shardlab.zero.nested import differentiable, tensors


@dataclass
class Record:
    x: Tensor
    more: dict[str, list[Tensor]]


Pair = namedtuple("Pair", ["a", "b"])


def test_every_container_is_walked_in_order() -> None:
    t = [torch.tensor(float(i)) for i in range(6)]
    tree = [Record(t[0], {"k": [t[1]]}), (t[2], OrderedDict(z=Pair(t[3], None))), {"n": t[4], "s": "text"}, 3, t[5]]
    assert [float(x) for x in tensors(tree)] == [0, 1, 2, 3, 4, 5]
    assert list(tensors(Record)) == [] and list(tensors(None)) == []


def test_only_what_a_gradient_comes_through() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    assert [z is x or z is y for z in differentiable([x, y, x.detach(), torch.ones(2)])] == [True, True]
    assert differentiable(nn.Parameter(torch.ones(2))) == []
