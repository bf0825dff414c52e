"""run_ranks: results, failures, and the state that ranks have to themselves."""

import functools
import os
import random
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from shardlab.comm import DeadlockError, Mesh, run_ranks


def test_results_come_in_rank_order_and_arguments_are_passed_on() -> None:
    box: list[int] = []

    def main(mesh: Mesh, factor: int, shared: list[int]) -> int:
        shared.append(mesh.rank)
        mesh["dp"].barrier("x")
        return factor * mesh.rank

    assert run_ranks({"pp": 2, "dp": 3}, main, 10, box) == [0, 10, 20, 30, 40, 50]
    assert box == [0, 1, 2, 3, 4, 5]


def test_sixty_four_ranks_train_a_step() -> None:
    def main(mesh: Mesh) -> float:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        model(torch.full((1, 3), float(mesh.rank))).sum().backward()
        for p in model.parameters():
            assert p.grad is not None
            mesh["dp"].all_reduce(p.grad)
        assert model.bias.grad is not None
        return float(model.weight.grad[0, 0]) + float(model.bias.grad)  # type: ignore[index]

    assert run_ranks({"dp": 64}, main) == [float(sum(range(64)) + 64)] * 64


def test_exactly_one_rank_runs_at_a_time_and_hands_over_only_in_calls() -> None:
    inside: list[int] = []

    def main(mesh: Mesh) -> None:
        for _ in range(20):
            inside.append(mesh.rank)
            time.sleep(0.0005)  # any other thread would get the interpreter here
            assert inside == [mesh.rank]
            inside.clear()
            mesh["dp"].barrier("x")

    run_ranks({"dp": 4}, main)


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_the_first_exception_is_raised_with_a_note_and_the_others_unwind(error: BaseException) -> None:
    unwound: list[int] = []

    def main(mesh: Mesh) -> None:
        try:
            if mesh.rank == 1:
                mesh["dp"].barrier("x")
                raise error
            for _ in range(5):
                mesh["dp"].barrier("x")
        except Exception as swallowed:
            if mesh.rank != 1:
                raise AssertionError("a program that catches Exception must not stop the unwinding") from swallowed
            raise
        finally:
            unwound.append(mesh.rank)

    with pytest.raises(type(error)) as caught:
        run_ranks({"dp": 3}, main)
    assert caught.value is error
    assert error.__notes__ == ["on rank 1 of 3"]
    assert sorted(unwound) == [0, 1, 2]


def test_a_rank_that_has_not_begun_does_not_begin_after_a_failure() -> None:
    begun: list[int] = []

    def main(mesh: Mesh) -> None:
        begun.append(mesh.rank)
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        run_ranks({"dp": 4}, main)
    assert begun == [0]


def test_a_failure_inside_backward_unwinds_all() -> None:
    def main(mesh: Mesh) -> None:
        x = torch.ones(2, requires_grad=True)
        y = x * 2

        def hook(grad: torch.Tensor) -> None:
            mesh["dp"].barrier("in backward")
            if mesh.rank == 1:
                raise ValueError("in a hook")
            mesh["dp"].barrier("again")

        y.register_hook(hook)
        y.sum().backward()

    with pytest.raises(ValueError, match="in a hook"):
        run_ranks({"dp": 3}, main)


def test_a_rank_that_runs_too_long_is_shown_with_its_stack() -> None:
    def spin_for_ever() -> None:
        while True:
            pass

    def main(mesh: Mesh) -> None:
        if mesh.rank == 1:
            spin_for_ever()
        mesh["dp"].barrier("x")

    threads = threading.active_count()
    with pytest.raises(TimeoutError, match=r"rank 1 of 2 ran for 0\.3 s") as caught:
        run_ranks({"dp": 2}, main, timeout_s=0.3)
    assert "spin_for_ever()" in str(caught.value) and "rank 0 waits for barrier #1" in str(caught.value)
    assert "in _bootstrap" not in str(caught.value)
    assert threading.active_count() == threads  # it was stopped, too


def test_a_lock_held_over_a_call_is_reported_by_the_watchdog() -> None:
    lock = threading.Lock()

    def main(mesh: Mesh) -> None:
        with lock:
            mesh["dp"].barrier("under a lock")

    threads = threading.active_count()
    with pytest.raises(TimeoutError, match="A lock held over a communicator call looks like this"):
        run_ranks({"dp": 2}, main, timeout_s=0.3)
    assert threading.active_count() == threads and not lock.locked()


def test_polling_for_ever_is_no_progress() -> None:
    def main(mesh: Mesh) -> None:
        p = mesh["dp"].start_recv(torch.zeros(1), 1 - mesh.rank)
        while not p.done():
            pass

    with pytest.raises(TimeoutError, match="without a call that hands over"):
        run_ranks({"dp": 2}, main, timeout_s=0.3)


def test_slow_ranks_that_hand_over_are_not_killed() -> None:
    def main(mesh: Mesh) -> int:
        for _ in range(6):
            time.sleep(0.05)
            mesh["dp"].barrier("x")
        return mesh.rank

    assert run_ranks({"dp": 2}, main, timeout_s=0.4) == [0, 1]  # 0.6 s in all


def test_a_rank_alone_need_not_hand_over() -> None:
    def main(mesh: Mesh) -> int:
        for _ in range(6):
            time.sleep(0.05)
            mesh["dp"].barrier("x")
        return mesh.rank

    assert run_ranks({"dp": 1}, main, timeout_s=0.2) == [0]


def test_ctrl_c_ends_a_rank_that_computes() -> None:
    def main(mesh: Mesh) -> None:
        if mesh.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass
        mesh["dp"].barrier("x")

    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_ranks({"dp": 2}, main)
    assert threading.active_count() == threads


def test_a_failed_run_leaves_nothing_behind() -> None:
    def bad(mesh: Mesh) -> None:
        mesh["dp"].recv(torch.zeros(1), 1 - mesh.rank)

    for _ in range(3):
        with pytest.raises(DeadlockError):
            run_ranks({"dp": 2}, bad)
    assert run_ranks({"dp": 2}, lambda mesh: mesh.rank) == [0, 1]


# ---- state -----------------------------------------------------------------------------------------------------------


def draws(mesh: Mesh, meet: bool) -> list[float]:
    """Draw from all generators between meetings; odd numbers of normal draws leave one aside in numpy."""
    out = []
    for _ in range(4):
        out += [torch.rand(()).item(), random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        if meet:
            mesh["dp"].barrier("x")
    return out


def test_each_rank_draws_as_if_it_were_alone_with_seed_plus_rank() -> None:
    expected = []
    for rank in range(3):
        expected += run_ranks({"dp": 1}, draws, False, seed=5 + rank)
    assert run_ranks({"dp": 3}, draws, True, seed=5) == expected
    assert len({tuple(e) for e in expected}) == 3
    torch.manual_seed(6)
    random.seed(6)
    np.random.seed(6)
    assert [torch.rand(()).item(), random.random()] == expected[1][:2]
    random.gauss(0, 1)
    assert np.random.rand() == expected[1][3]


def test_the_callers_state_is_as_before_also_after_a_failure() -> None:
    def main(mesh: Mesh) -> None:
        draws(mesh, True)
        torch.set_default_dtype(torch.float64)
        warnings.simplefilter("ignore")
        mesh["dp"].barrier("x")
        if mesh.rank == 1:
            raise ValueError("stop")

    torch.manual_seed(1), random.seed(1), np.random.seed(1), np.random.randn()
    with_run, filters = [], list(warnings.filters)
    with pytest.raises(ValueError, match="stop"):
        run_ranks({"dp": 2}, main)
    with_run += [torch.rand(()).item(), random.random(), np.random.randn(), np.random.randn()]
    assert torch.get_default_dtype() is torch.float32 and list(warnings.filters) == filters
    torch.manual_seed(1), random.seed(1), np.random.seed(1), np.random.randn()
    assert with_run == [torch.rand(()).item(), random.random(), np.random.randn(), np.random.randn()]


def test_default_dtype_and_warnings_filters_are_per_rank() -> None:
    def main(mesh: Mesh) -> tuple[torch.dtype, int]:
        if mesh.rank == 0:
            torch.set_default_dtype(torch.float64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always" if mesh.rank == 1 else "ignore")
            for _ in range(3):
                mesh["dp"].barrier("x")
                warnings.warn("heard by rank 1 alone", stacklevel=1)
        mesh["dp"].barrier("x")
        return torch.empty(0).dtype, len(caught)

    assert run_ranks({"dp": 3}, main) == [(torch.float64, 0), (torch.float32, 3), (torch.float32, 0)]


def test_the_callers_filters_hold_in_ranks() -> None:
    def main(mesh: Mesh) -> None:
        mesh["dp"].barrier("x")
        warnings.warn(f"from {mesh.rank}", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_ranks({"dp": 2}, main)
    assert [str(w.message) for w in caught] == ["from 1", "from 0"]  # the last to arrive goes on first


def test_grad_mode_autocast_and_threads_are_those_of_the_caller() -> None:
    def main(mesh: Mesh) -> tuple[object, ...]:
        mesh["dp"].barrier("x")
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), product.dtype, torch.get_num_threads()

    threads = torch.get_num_threads()
    assert run_ranks({"dp": 2}, main) == [(True, False, torch.float32, threads)] * 2
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_ranks({"dp": 2}, main) == [(False, False, torch.bfloat16, threads)] * 2
    with torch.inference_mode():
        assert run_ranks({"dp": 2}, main) == [(False, True, torch.float32, threads)] * 2


def test_grad_mode_of_a_rank_stays_with_it() -> None:
    def main(mesh: Mesh) -> list[bool]:
        with torch.set_grad_enabled(mesh.rank == 0):
            mesh["dp"].barrier("x")
            inside = torch.is_grad_enabled()
        return [inside, torch.is_grad_enabled()]

    assert run_ranks({"dp": 2}, main) == [[True, True], [False, True]]


def test_the_default_device_is_that_of_the_caller() -> None:
    with torch.device("meta"):
        assert run_ranks({"dp": 2}, lambda mesh: torch.empty(1).device.type) == ["meta"] * 2


def test_fake_tensors_meet() -> None:
    def main(mesh: Mesh) -> bool:
        x, out = torch.ones(3), torch.ones(6)
        mesh["dp"].all_reduce(x)
        p = mesh["dp"].start_all_gather(out, x)
        mesh["dp"].barrier("x")
        p.wait()
        return isinstance(x, FakeTensor) and isinstance(out, FakeTensor)

    with FakeTensorMode():
        assert run_ranks({"dp": 2}, main) == [True, True]


def test_backward_runs_on_the_ranks_own_thread() -> None:
    def main(mesh: Mesh) -> list[int]:
        seen: list[int] = []
        x = torch.ones(2, requires_grad=True)
        y = x * 2

        def hook(grad: torch.Tensor) -> torch.Tensor:
            seen.append(threading.get_ident())
            grad = grad.clone()  # what comes from sum() is expanded
            mesh["dp"].all_reduce(grad)
            return grad

        y.register_hook(hook)
        y.sum().backward()
        assert seen == [threading.get_ident()] and not torch._C._is_multithreading_enabled()
        return x.grad.tolist()  # type: ignore[union-attr]

    assert run_ranks({"dp": 3}, main) == [[6.0, 6.0]] * 3


def test_dropout_under_checkpoint_repeats_in_each_rank() -> None:
    def main(mesh: Mesh) -> bool:
        x = torch.ones(64, requires_grad=True)

        def block(t: torch.Tensor) -> torch.Tensor:
            mesh["dp"].barrier("in the block")
            return torch.nn.functional.dropout(t, 0.5)

        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        y.sum().backward()
        return torch.equal(x.grad, y.detach())  # type: ignore[arg-type]

    assert run_ranks({"dp": 3}, main) == [True] * 3


def test_ranks_nest() -> None:
    def inner(mesh: Mesh, outer: int) -> float:
        x = torch.tensor(float(10 * outer + mesh.rank))
        mesh["dp"].all_reduce(x)
        return x.item()

    def main(mesh: Mesh) -> float:
        total = torch.tensor(sum(run_ranks({"dp": 2}, inner, mesh.rank)))
        mesh["dp"].all_reduce(total)
        return total.item()

    assert run_ranks({"dp": 2}, main) == [2 * 1 + 2 * 21.0] * 2


def test_a_wrong_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match="'dp' has size 0"):
        run_ranks({"dp": 0}, lambda mesh: None)


def test_a_cached_property_without_a_call_inside_is_harmless() -> None:
    class Lazy:
        @functools.cached_property
        def value(self) -> int:
            return 3

    lazy = Lazy()

    def main(mesh: Mesh) -> int:
        mesh["dp"].barrier("x")
        return lazy.value

    assert run_ranks({"dp": 2}, main) == [3, 3]
