"""Gradients as users handle them: cleared in every way, asked for alone, twice, of second order, with hooks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import ShardedGradError, gathered, inspect, no_sync, shard
from tests.zero.plain import Task, Weights, at_rest, check, fresh, numbers, plain, same, sharding, whole


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


TASK = Task(layers, loss)
STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def start(mesh: Mesh, stage: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    return shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=stage)


def set_each_to_none(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = None


CLEARS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
    "optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "optimizer, to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda model, optimizer: model.zero_grad(),
    "each": set_each_to_none,
    "both": lambda model, optimizer: (optimizer.zero_grad(), model.zero_grad()),
}


@STAGES
@pytest.mark.parametrize("clear", CLEARS)
def test_every_way_to_clear(stage: int, clear: str) -> None:
    """Clearing comes before the step's backwards, so what was left of another batch must not count."""

    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        for step in range(TASK.steps):
            loss(model, 50 + step, mesh["dp"].index).backward()
            CLEARS[clear](model, optimizer)
            if "zero" not in clear:
                assert all(p.grad is None for p in model.parameters())
                assert all(inspect(model, name, "grad") is None for name, _ in model.named_parameters())
            loss(model, step, mesh["dp"].index).backward()
            optimizer.step()
            CLEARS[clear](model, optimizer)
        return whole(model)

    want = plain(TASK, 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@STAGES
def test_a_step_without_gradients_changes_nothing(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        before = whole(model)
        optimizer.step()
        loss(model, 0, 0).backward()
        optimizer.zero_grad()
        optimizer.step()
        same(whole(model), before)

    run_ranks({"dp": 2}, body)


@STAGES
def test_one_parameter_cleared_keeps_the_others(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        loss(model, 0, mesh["dp"].index).backward()
        kept = inspect(model, "2.weight", "grad")
        model[0].weight.grad = None
        assert inspect(model, "0.weight", "grad") is None
        again = inspect(model, "2.weight", "grad")
        assert kept is not None and again is not None and torch.equal(kept, again)

    run_ranks({"dp": 2}, body)


@STAGES
def test_gradients_of_no_sync_can_be_dropped(stage: int) -> None:
    if stage >= 2:

        def refused(mesh: Mesh) -> None:
            model, _ = start(mesh, stage)
            with pytest.raises(ValueError, match=rf"no_sync at stage {stage}"), no_sync(model):
                pass

        run_ranks({"dp": 2}, refused)
        return

    def body(mesh: Mesh, clear: str) -> Weights:
        model, optimizer = start(mesh, stage)
        for step in range(TASK.steps):
            with no_sync(model):
                loss(model, 50 + step, mesh["dp"].index).backward()
            CLEARS[clear](model, optimizer)
            loss(model, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(TASK, 2)
    for clear in ("optimizer", "model"):
        for got in run_ranks({"dp": 2}, body, clear):
            same(got, want)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_on_gradients_of_no_sync_alone_is_refused(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        with no_sync(model):
            loss(model, 0, mesh["dp"].index).backward()
        with pytest.raises(RuntimeError, match=r"no_sync"):
            optimizer.step()

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("of", ["model", "optimizer"])
@pytest.mark.parametrize("foreach", [True, False])
def test_torchs_own_clipping_is_refused(stage: int, of: str, foreach: bool) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        loss(model, 0, mesh["dp"].index).backward()
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if of == "model":
            params = list(model.parameters())
        with pytest.raises(ShardedGradError, match="clip_grad_norm_"):
            nn.utils.clip_grad_norm_(params, 1.0, foreach=foreach)
        with pytest.raises(ShardedGradError, match="clip_grad_norm_"):
            nn.utils.get_total_norm([p.grad for p in params], foreach=foreach)

    run_ranks({"dp": 2}, body)


def test_torchs_own_clipping_works_where_a_rank_holds_whole_gradients() -> None:
    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, 0)
        loss(model, 0, mesh["dp"].index).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return whole(model)

    def alone() -> Weights:
        model = fresh(TASK)
        optimizer = TASK.optimizer(model.parameters())
        sum(loss(model, 0, rank) / 2 for rank in range(2)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return {name: p.detach() for name, p in model.named_parameters()}

    for got in run_ranks({"dp": 2}, body):
        same(got, alone(), within=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_torchs_grad_scaler_is_refused(stage: int) -> None:
    """Each rank would look for overflow in its own pieces alone, and skip alone."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss(model, 0, mesh["dp"].index)).backward()
        for use in (scaler.unscale_, scaler.step):
            with pytest.raises(ShardedGradError, match="GradScaler"):
                use(optimizer)

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sharded_gradient_that_is_read_names_the_accessor(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        loss(model, 0, mesh["dp"].index).backward()
        grad = model[0].weight.grad
        assert grad.shape == (6, 6) and grad.dtype == torch.float32 and "sharded" in repr(grad)
        for touch in (
            lambda: grad + 1,
            lambda: grad.abs().max(),
            lambda: grad.clone(),
            lambda: grad.numpy(),
            lambda: grad.mul_(2),
        ):
            with pytest.raises(ShardedGradError, match=r"'0\.weight'[\s\S]*inspect\("):
                touch()
        with pytest.raises(ShardedGradError, match=r"grad_sink"):
            model[0].weight.grad = torch.ones(6, 6)
            loss(model, 0, mesh["dp"].index).backward()

    run_ranks({"dp": 2}, body)


@STAGES
def test_autograd_grad_gives_this_ranks_own_gradients_and_disturbs_nothing(stage: int) -> None:
    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        alone = fresh(TASK)
        for step in range(TASK.steps):
            rank = mesh["dp"].index
            if step == 0:
                with gathered(model):  # at stage 3 the parameters must be here to be asked for
                    got = torch.autograd.grad(loss(model, 9, rank), list(model.parameters()))
                want = torch.autograd.grad(loss(alone, 9, rank), list(alone.parameters()))
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
            loss(model, step, rank).backward()
            before = inspect(model, "0.weight", "grad")
            x = numbers(3, 6, step=9, rank=rank).requires_grad_()
            torch.autograd.grad(model(x).sum(), x)
            after = inspect(model, "0.weight", "grad")
            assert before is not None and after is not None and torch.equal(before, after)
            at_rest(model)
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(TASK, 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want)


@STAGES
def test_a_backward_to_some_parameters_leaves_the_others_without_a_gradient(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        with gathered(model, "2.weight"):
            loss(model, 0, mesh["dp"].index).backward(inputs=[model[2].weight])
        at_rest(model)
        alone = fresh(TASK)
        (sum(loss(alone, 0, rank) for rank in range(2)) / 2).backward()
        got = inspect(model, "2.weight", "grad")
        assert got is not None and torch.allclose(got, alone[2].weight.grad, atol=1e-7)
        assert inspect(model, "0.weight", "grad") is None and model[0].weight.grad is None
        before = whole(model)
        optimizer.step()
        assert [name for name, x in whole(model).items() if not torch.equal(x, before[name])] == ["2.weight"]

    run_ranks({"dp": 2}, body)


@STAGES
def test_autograd_grad_does_not_cost_the_next_backward_a_second_round(stage: int) -> None:
    """What no rank used in a backward without parameters says nothing about the next one."""

    def body(mesh: Mesh) -> list[int]:
        model, _ = start(mesh, stage)
        counts = []
        for ask in (False, True, False):
            if ask:
                x = numbers(3, 6, step=9, rank=0).requires_grad_()
                torch.autograd.grad(model(x).sum(), x)
            sent = 0
            reducer = sharding(model).reducer
            original = reducer._send

            def count(unit: object, original: Callable[..., None] = original) -> None:
                nonlocal sent
                sent += 1
                original(unit)

            reducer._send = count  # type: ignore[method-assign]
            loss(model, 0, mesh["dp"].index).backward()
            reducer._send = original  # type: ignore[method-assign]
            counts.append(sent)
        return counts

    assert run_ranks({"dp": 2}, body) == [[3, 3, 3]] * 2


@STAGES
def test_two_backwards_on_one_graph(stage: int) -> None:
    def twice(model: nn.Module, step: int, rank: int) -> Tensor:
        value = loss(model, step, rank)
        value.backward(retain_graph=True)
        return value

    def body(mesh: Mesh) -> Weights:
        model, optimizer = start(mesh, stage)
        for step in range(TASK.steps):
            twice(model, step, mesh["dp"].index).backward()
            at_rest(model)
            optimizer.step()
            optimizer.zero_grad()
        return whole(model)

    want = plain(Task(layers, lambda *a: 2 * loss(*a)), 2)
    for got in run_ranks({"dp": 2}, body):
        same(got, want, within=1e-6)


@STAGES
def test_a_gradient_penalty_of_second_order(stage: int) -> None:
    """As in WGAN-GP: the loss holds the gradient of the output with respect to the input."""

    def penalised(model: nn.Module, step: int, rank: int) -> Tensor:
        x = numbers(3, 6, step=step, rank=rank).requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.mean() + (slope.norm(dim=1) - 1).square().mean()

    check(Task(layers, penalised), stages=[stage], within=1e-6, lost=None)


@STAGES
def test_losses_of_several_forwards_in_one_backward(stage: int) -> None:
    check(Task(layers, lambda m, s, r: loss(m, s, r) + 2 * loss(m, s + 20, r)), stages=[stage])


@STAGES
def test_hooks_of_the_user_on_modules_and_tensors(stage: int) -> None:
    seen: list[str] = []

    def prepare(model: nn.Module) -> None:
        model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        model[0].register_forward_hook(lambda m, args, out: out + m.weight.sum())
        model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
        model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        model[4].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        model.register_forward_hook(lambda m, args, out: seen.append("root"))

    check(Task(layers, loss, prepare=prepare), stages=[stage])
    assert seen


@STAGES
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_users_post_accumulate_hook_sees_the_local_gradient(stage: int, when: str) -> None:
    def body(mesh: Mesh) -> None:
        model = fresh(TASK)
        seen: list[Tensor] = []

        def watch(p: Tensor) -> None:
            assert p.grad is not None
            seen.append(p.grad.clone())
            p.grad.mul_(2)

        if when == "before":
            model[0].weight.register_post_accumulate_grad_hook(watch)
        model, _ = shard(model, TASK.optimizer, mesh["dp"], stage=stage)
        if when == "after":
            model[0].weight.register_post_accumulate_grad_hook(watch)
        loss(model, 0, mesh["dp"].index).backward()
        total = inspect(model, "0.weight", "grad")
        alone = fresh(TASK)
        sum(loss(alone, 0, rank) for rank in range(2)).backward()
        assert len(seen) == 1 and total is not None
        assert torch.allclose(total, alone[0].weight.grad, atol=1e-6)  # 2 x the mean is the sum

    run_ranks({"dp": 2}, body)
