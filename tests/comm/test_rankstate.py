"""State that is swapped at a hand-over, and state that is inherited; without ranks."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm.rankstate import GlobalState, NumpyState, ThreadState


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the process as it was."""
    before = GlobalState.capture()
    yield
    before.install(over=GlobalState.capture())


DRAWS: list[Callable[[], float]] = [
    lambda: torch.rand(()).item(),
    lambda: torch.randn(3).sum().item(),
    random.random,
    lambda: random.gauss(0, 1),
    lambda: float(np.random.rand()),
    lambda: float(np.random.randn()),  # draws two, keeps one aside
    lambda: float(np.random.randint(1000)),
]


@pytest.mark.parametrize("taking", [1, 2, 3, 700])
@pytest.mark.parametrize("draw", DRAWS)
def test_two_programs_in_turns_draw_as_each_would_alone(draw: Callable[[], float], taking: int) -> None:
    def alone(seed: int) -> list[float]:
        GlobalState.seed(seed)
        return [draw() for _ in range(3 * taking)]

    want = [alone(1), alone(2)]
    states = []
    for seed in (1, 2):
        GlobalState.seed(seed)
        states.append(GlobalState.capture())
    over, got = states[1], [[], []]  # type: ignore[var-annotated]
    for _ in range(3):
        for i in (0, 1):
            states[i].install(over)
            got[i] += [draw() for _ in range(taking)]
            states[i] = over = GlobalState.capture(states[i])
    assert got == want


def test_numpy_is_read_only_if_something_was_drawn() -> None:
    np.random.seed(3)
    first = NumpyState.capture(None)
    assert first is not None and first.plain and NumpyState.capture(first) is first
    np.random.rand()
    second = NumpyState.capture(first)
    assert second is not None and second is not first and second.plain


def test_a_normal_number_kept_aside_is_part_of_the_state() -> None:
    np.random.seed(3)
    np.random.randn()
    aside = NumpyState.capture(None)
    assert aside is not None and not aside.plain
    want = np.random.randn()  # takes the one kept aside, which changes nothing that can be seen in memory
    after = NumpyState.capture(aside)
    assert after is not None and after is not aside and after.plain
    aside.install(over=after)
    assert np.random.randn() == want


def test_dtype_and_filters_are_put_back() -> None:
    torch.set_default_dtype(torch.float64)
    warnings.filters = [*warnings.filters]  # type: ignore[assignment]
    warnings.simplefilter("error")
    there = GlobalState.capture()
    torch.set_default_dtype(torch.float32)
    warnings.filters = [*warnings.filters[1:]]  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    here = GlobalState.capture()
    warnings.warn("ignored", stacklevel=1)
    there.install(over=here)
    assert torch.get_default_dtype() is torch.float64
    with pytest.raises(UserWarning, match="now an error"):
        warnings.warn("now an error", stacklevel=1)
    here.install(over=there)
    warnings.warn("ignored again", stacklevel=1)
    assert torch.get_default_dtype() is torch.float32


def test_a_fake_tensor_mode_does_not_fake_the_random_state() -> None:
    torch.manual_seed(4)
    with FakeTensorMode():
        state = GlobalState.capture()
    want = torch.rand(3)
    with FakeTensorMode():
        state.install(over=GlobalState.capture())
    assert torch.equal(torch.rand(3), want)


def test_a_thread_takes_over_what_its_caller_had() -> None:
    seen: list[object] = []

    def look(state: ThreadState) -> None:
        before = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_device().type
        with state.entered():
            inside = torch.is_grad_enabled(), torch.get_autocast_dtype("cpu"), torch.get_default_device().type
            seen.extend([before, inside, torch.is_autocast_enabled("cpu"), torch._C._len_torch_dispatch_stack()])
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_device().type))

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16), torch.device("meta"), FakeTensorMode():
        state = ThreadState()
    thread = threading.Thread(target=look, args=(state,))
    thread.start()
    thread.join()
    outside = (True, False, "cpu")
    assert seen == [outside, (False, torch.float16, "meta"), True, 1, outside]
