"""State of optimizers: what torch allocates."""

import pytest
import torch

from shardlab.plan import OPTIMIZERS, optimizer_spec

MAKE = {
    "adamw": lambda p: torch.optim.AdamW(p),
    "adam": lambda p: torch.optim.Adam(p),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_what_torch_keeps(name: str) -> None:
    params = [torch.nn.Parameter(torch.ones(5, 3)), torch.nn.Parameter(torch.ones(7))]
    optimizer = MAKE[name](params)
    sum(p.sum() for p in params).backward()  # type: ignore[union-attr]
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    spec = optimizer_spec(name)
    assert sum(t.nbytes for t in kept) == 4 * (22 * spec.moments + 2 * spec.counters)


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="'adamv' is not known; nearest: 'adam"):
        optimizer_spec("adamv")
