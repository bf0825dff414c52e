"""What goes wrong in the middle: exceptions, branches that differ between ranks, steps at the wrong moment."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import DivergedError, Mesh, run_ranks
from shardlab.zero import gathered, shard
from tests.zero.plain import Task, Weights, at_rest, fresh, numbers, plain, same, sharding, whole


def blocks() -> nn.Module:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


TASK = Task(blocks, loss)


class Trip(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        raise FloatingPointError("tripped")


def trip_forward(*_: object) -> None:
    raise FloatingPointError("tripped")


def trip_backward(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return Trip.apply(output)


def start(mesh: Mesh, stage: int, task: Task = TASK) -> tuple[nn.Module, torch.optim.Optimizer]:
    return shard(fresh(task), task.optimizer, mesh["dp"], stage=stage)


def rest_of(mesh: Mesh, model: nn.Module, optimizer: torch.optim.Optimizer, task: Task = TASK) -> Weights:
    for step in range(task.steps):
        task.loss(model, step, mesh["dp"].index).backward()
        at_rest(model)
        optimizer.step()
        optimizer.zero_grad()
    return whole(model)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("where", "clear"),
    [(where, clear) for where in ("forward", "backward", "user's pre-hook") for clear in ("optimizer", "model")]
    + [("forward", "no clear"), ("user's pre-hook", "no clear")],
)
def test_the_step_after_an_exception_is_right(stage: int, where: str, clear: str) -> None:
    """As in a loop that skips a bad batch. A backward that raised leaves part of a gradient, as in plain torch."""

    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        for _ in range(2):
            if where == "forward":
                handle = model[2].register_forward_hook(trip_forward)
            elif where == "backward":
                handle = model[1].register_forward_hook(trip_backward)
            else:
                handle = model[2].register_forward_pre_hook(trip_forward, prepend=True)
            with pytest.raises(FloatingPointError, match="tripped"):
                loss(model, 77, mesh["dp"].index).backward()
            handle.remove()
            if clear == "optimizer":
                optimizer.zero_grad()
            elif clear == "model":
                model.zero_grad()
        return rest_of(mesh, model, optimizer)

    want = plain(TASK, 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_was_accumulated_before_a_failed_backward_can_be_dropped(stage: int) -> None:
    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        loss(model, 55, mesh["dp"].index).backward()
        handle = model[1].register_forward_hook(trip_backward)
        with pytest.raises(FloatingPointError):
            loss(model, 77, mesh["dp"].index).backward()
        handle.remove()
        optimizer.zero_grad()
        return rest_of(mesh, model, optimizer)

    want = plain(TASK, 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gradient_accumulated_before_a_failed_forward_is_kept(stage: int) -> None:
    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        loss(model, 0, mesh["dp"].index).backward()
        handle = model[2].register_forward_hook(trip_forward)
        with pytest.raises(FloatingPointError):
            loss(model, 77, mesh["dp"].index)
        handle.remove()
        optimizer.step()
        return whole(model)

    want = plain(Task(blocks, loss, steps=1), 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gradient_accumulated_before_a_failed_backward_is_kept(stage: int) -> None:
    """The second backward raises before any gradient arrives, and the user goes on without a clear."""

    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        loss(model, 0, mesh["dp"].index).backward()
        handle = model[3].register_forward_hook(trip_backward)
        with pytest.raises(FloatingPointError):
            loss(model, 77, mesh["dp"].index).backward()
        handle.remove()
        assert all(p.grad is not None for p in model.parameters())
        with torch.no_grad():
            loss(model, 1, mesh["dp"].index)
        optimizer.step()
        return whole(model)

    want = plain(Task(blocks, loss, steps=1), 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


class Branching(nn.Module):
    """Rank 0 takes the left branch in odd steps, the right one in even steps; the other ranks the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        x = torch.tanh(self.shared(x))
        return self.left(x) if left else self.right(x)


def branch_loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank), left=(step + rank) % 2 == 0).square().mean()


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_branch_differently_agree_where_parameters_are_whole(stage: int, ranks: int) -> None:
    task = Task(Branching, branch_loss)
    want = plain(task, ranks)
    for got in run_ranks({"dp": ranks}, lambda mesh: rest_of(mesh, *start(mesh, stage, task), task)):
        same(got, want)


def test_ranks_that_branch_differently_raise_at_stage_3_and_name_both_modules() -> None:
    task = Task(Branching, branch_loss)

    def body(mesh: Mesh) -> str:
        model, optimizer = start(mesh, 3, task)
        with pytest.raises(DivergedError) as caught:
            rest_of(mesh, model, optimizer, task)
        return str(caught.value)

    for text in run_ranks({"dp": 2}, body):
        assert "'left'" in text and "'right'" in text and "rank 0" in text and "rank 1" in text


def test_one_branch_for_all_ranks_changes_from_step_to_step() -> None:
    task = Task(Branching, lambda model, step, rank: branch_loss(model, step, 2 * rank), steps=4)
    want = plain(task, 2)
    for stage in (0, 1, 2, 3):
        for got in run_ranks({"dp": 2}, lambda mesh, s=stage: rest_of(mesh, *start(mesh, s, task), task)):
            same(got, want)


class Early(nn.Module):
    """Leaves after two of four layers when asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor, depth: int = 4) -> Tensor:
        for layer in self.layers[:depth]:
            x = torch.tanh(layer(x))
        return x


def test_a_layer_fetched_ahead_for_nothing_is_not_stale_after_the_step() -> None:
    """Whole passes teach the order; a short one leaves its next layer under way when the optimizer steps."""
    task = Task(Early, loss, steps=4)

    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, 3, task)
        for step in range(task.steps):
            task.loss(model, step, mesh["dp"].index).backward()
            with torch.no_grad():
                for depth in (4, 4, 2):
                    model(numbers(3, 6, step=99, rank=0), depth=depth)
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(task, 2)
    for seed in range(4):
        for got in run_ranks({"dp": 2}, body, seed=seed):
            same(got, want)


def test_a_step_inside_gathered_is_refused_at_stage_3() -> None:
    """The gathered values would be old after it, and an edit would put them back."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, 3)
        loss(model, 0, mesh["dp"].index).backward()
        with pytest.raises(RuntimeError, match=r"optimizer\.step.*gathered"), gathered(model):
            optimizer.step()
        optimizer.step()

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_inside_backward_is_refused(stage: int) -> None:
    """An optimizer called from a gradient hook would update from half a gradient."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        model[0].weight.register_hook(lambda grad: optimizer.step())
        with pytest.raises(RuntimeError, match=r"optimizer\.step.*inside backward"):
            loss(model, 0, mesh["dp"].index).backward()
        with torch.no_grad():
            loss(model, 0, mesh["dp"].index)

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(
    "move", [lambda m: m.half(), lambda m: m.double(), lambda m: setattr(m[0].weight, "data", torch.ones(6, 6))]
)
def test_weights_moved_out_of_their_buffer_are_noticed(stage: int, move: Callable[[nn.Module], object]) -> None:
    """The optimizer would go on updating a buffer that the model no longer reads."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        move(model)
        with pytest.raises(RuntimeError, match=r"'0\.weight'.*before shard"):
            optimizer.step()

    run_ranks({"dp": 2}, body)


def test_nothing_grows_over_fifty_steps() -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, 3, Task(Early, loss))
        parts = sharding(model)
        given = numbers(3, 6, step=0, rank=0).requires_grad_()
        seen = []
        for step in range(50):
            model(given).sum().backward()
            loss(model, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(given, depth=2)
                model.layers[0](given)
            hooks = len(given._backward_hooks or {})
            seen.append((parts.pool.kept_bytes, parts.pool.peak_bytes, parts.pool.lost, hooks, len(parts.units)))
            assert len(parts.reducer._under_way) == 0 and len(parts.reducer._fresh) == 0
        assert seen[2:] == seen[2:3] * 48
        assert parts.pool.lost == 0

    run_ranks({"dp": 2}, body)
