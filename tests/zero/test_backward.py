"""When a backward begins, ends and fails, seen from hooks alone."""

import pytest
import torch
from torch import Tensor

from shardlab.zero.backward import BackwardPass


class Watched:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.passes = BackwardPass(
            lambda: self.seen.append("begin"), lambda: self.seen.append("end"), lambda: self.seen.append("fail")
        )
        self.x = torch.ones(3, requires_grad=True)

    def hooked(self) -> Tensor:
        y = self.x * 2
        y.register_hook(lambda _: self.passes.begin())
        return y


class Trip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise FloatingPointError("tripped")


class Nested(torch.autograd.Function):
    """Runs a backward inside a backward, as reentrant checkpoints do."""

    @staticmethod
    def forward(ctx: object, x: Tensor, watched: Watched) -> Tensor:
        ctx.watched = watched  # type: ignore[attr-defined]
        return x * 2

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            inner = ctx.watched.hooked().sum()  # type: ignore[attr-defined]
        inner.backward()
        return grads[0] * 2, None


@pytest.fixture(autouse=True)
def one_thread_backward() -> object:
    with torch.autograd.set_multithreading_enabled(False):
        yield


def test_one_beginning_and_one_end_for_each_backward() -> None:
    w = Watched()
    for _ in range(2):
        (w.hooked() + w.hooked()).sum().backward()
    assert w.seen == ["begin", "end"] * 2 and not w.passes.active


def test_a_hook_outside_a_backward_begins_nothing() -> None:
    w = Watched()
    w.passes.begin()
    assert w.seen == [] and not w.passes.running


def test_a_backward_that_raises_fails_before_the_error_reaches_the_user() -> None:
    w = Watched()
    for _ in range(2):
        w.seen.clear()
        y = Trip.apply(w.x)
        z = y * 1
        z.register_hook(lambda _: w.passes.begin())
        with pytest.raises(FloatingPointError):
            z.sum().backward()
        assert w.seen == ["begin", "fail"] and not w.passes.active
    w.seen.clear()
    w.hooked().sum().backward()
    assert w.seen == ["begin", "end"]


def test_a_backward_inside_a_backward_is_part_of_it() -> None:
    w = Watched()
    y = Nested.apply(w.x, w) * 1
    y.register_hook(lambda _: w.passes.begin())
    y.sum().backward()
    assert w.seen == ["begin", "end"]


def test_an_end_that_raises_leaves_nothing_open() -> None:
    def end() -> None:
        raise ValueError("in the end")

    passes = BackwardPass(lambda: None, end, lambda: None)
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: passes.begin())
    with pytest.raises(ValueError, match="in the end"):
        y.sum().backward()
    assert not passes.active
