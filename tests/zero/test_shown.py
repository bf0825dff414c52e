"""Parts of gradients and stand-ins: usable by an optimizer, useless for what only the whole can answer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shardlab.zero.shown import GradPart, ShardedGradError, StandIn, part_of, stand_in


def test_a_part_shares_memory_and_computes() -> None:
    piece = torch.arange(4.0)
    part = part_of(piece)
    assert isinstance(part, GradPart) and part.data_ptr() == piece.data_ptr()
    part.mul_(2)
    torch._foreach_add_([part], 1.0)
    assert piece.tolist() == [1, 3, 5, 7]
    assert type(part * 2) is Tensor and torch.equal(part.lerp(torch.zeros(4), 0.5), piece / 2)


NORMS: dict[str, Callable[[Tensor], object]] = {
    "norm": lambda g: g.norm(),
    "torch.norm": lambda g: torch.norm(g),
    "vector_norm": lambda g: torch.linalg.vector_norm(g),
    "linalg.norm": lambda g: torch.linalg.norm(g),
    "foreach": lambda g: torch._foreach_norm([g]),
    "dist": lambda g: torch.dist(g, torch.zeros(4)),
    "get_total_norm": lambda g: nn.utils.get_total_norm([g]),
    "clip": lambda g: nn.utils.clip_grad_norm_(_with_grad(g), 1.0),
}


def _with_grad(grad: Tensor) -> nn.Parameter:
    p = nn.Parameter(torch.zeros(grad.shape))
    p.grad = grad
    return p


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_a_part_raises_and_says_what_to_call(norm: str) -> None:
    with pytest.raises(ShardedGradError, match=r"part of a gradient.*clip_grad_norm_\(optimizer"):
        NORMS[norm](part_of(torch.ones(4)))
    with pytest.raises(ShardedGradError, match=r"'a\.weight'.*inspect\(model, 'a\.weight', 'grad'\)"):
        NORMS[norm](stand_in(torch.ones(4), "a.weight"))


def test_clipping_by_value_is_elementwise_and_works_on_parts() -> None:
    p = _with_grad(part_of(torch.tensor([-3.0, 0.5, 3.0])))
    nn.utils.clip_grad_value_(p, 1.0)
    assert torch.equal(p.grad.as_subclass(Tensor), torch.tensor([-1.0, 0.5, 1.0]))


def test_a_stand_in_has_a_form_and_no_values() -> None:
    like = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    shown = stand_in(like, "w")
    assert isinstance(shown, StandIn) and shown.shape == (3, 2) and shown.dtype == torch.bfloat16
    assert shown.numel() == 6
    assert "sharded gradient of 'w'" in repr(shown)
    like.grad = shown
    assert like.grad is shown
    like.grad = None
    for touch in (
        lambda: shown * 2,
        lambda: shown.zero_(),
        lambda: shown.to(torch.float32),
        lambda: torch.isnan(shown),
    ):
        with pytest.raises(ShardedGradError, match="'w'"):
            touch()
