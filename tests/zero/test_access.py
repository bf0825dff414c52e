"""`gathered` and `inspect`: whole values for reading, editing and penalties, at every stage."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, gathered, inspect, shard
from tests.zero.plain import Task, at_rest, check, fresh, numbers, sharding, whole

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


TASK = Task(layers, loss)


def start(mesh: Mesh, stage: int, precision: Precision | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    return shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=stage, precision=precision)


@STAGES
def test_an_edit_from_one_rank_reaches_all_and_is_used(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        with gathered(model, "0.weight", "2.bias", write_from=1), torch.no_grad():
            model[0].weight[1] = 7.0 if mesh["dp"].index == 1 else -1.0
            model[2].bias.data = torch.full((2,), 3.0)
        at_rest(model)
        alone = fresh(TASK)
        with torch.no_grad():
            alone[0].weight[1] = 7.0
            alone[2].bias[:] = 3.0
        x = numbers(3, 6, step=0, rank=0)
        assert torch.equal(model(x), alone(x))
        for name, p in alone.named_parameters():
            got = inspect(model, name)
            assert got is not None and torch.equal(got, p)

    run_ranks({"dp": 2}, body)


@STAGES
def test_an_edit_survives_the_next_step(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        with gathered(model, write_from=0), torch.no_grad():
            model[0].weight.zero_()
        loss(model, 0, 0).backward()
        optimizer.step()
        got = inspect(model, "0.weight")
        assert got is not None and got.abs().max() <= 1.01e-2  # one AdamW step from zero

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize(
    ("stage", "how"), [(stage, "gathered") for stage in range(4)] + [(stage, "in place") for stage in range(3)]
)
def test_an_edit_keeps_the_master_weights_of_what_it_left_alone(stage: int, how: str) -> None:
    """Writing rounded weights over all masters of a unit would undo every update too small for bf16."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage, Precision(compute="bf16"))
        for step in range(2):
            loss(model, step, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        before = inspect(model, "0.weight", "master")
        bias = inspect(model, "0.bias", "master")
        assert before is not None and not torch.equal(before, before.bfloat16().float())
        if how == "gathered":
            with gathered(model, "0.weight", write_from=0), torch.no_grad():
                model[0].weight[1, 2] = 5.0
        else:
            with torch.no_grad():
                model[0].weight[1, 2] = 5.0
            optimizer.step()  # without gradients
        after, want = inspect(model, "0.weight", "master"), before.clone()
        want[1, 2] = 5.0
        assert after is not None and torch.equal(after, want)
        kept = inspect(model, "0.bias", "master")
        assert kept is not None and bias is not None and torch.equal(kept, bias)
        shown = inspect(model, "0.weight")
        assert shown is not None and shown.dtype == torch.bfloat16 and torch.equal(shown, want.bfloat16())

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_load_state_dict_is_not_undone_by_the_next_step(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage, Precision(compute="bf16"))
        torch.manual_seed(5)
        loaded = {name: p.detach().bfloat16() for name, p in layers().named_parameters()}
        model.load_state_dict(loaded)
        optimizer.step()  # without gradients
        for name, want in loaded.items():
            got, master = inspect(model, name), inspect(model, name, "master")
            assert got is not None and torch.equal(got, want)
            assert master is not None and torch.equal(master, want.float())

    run_ranks({"dp": 2}, body)


@STAGES
def test_an_edit_without_a_source_is_an_error_that_names_the_parameter(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        edited = pytest.raises(RuntimeError, match=r"'2\.weight'.*write_from")
        with edited, gathered(model, "0.weight", "2.weight"), torch.no_grad():
            model[2].weight[0] = 1.0
        at_rest(model)

    run_ranks({"dp": 2}, body)


@STAGES
def test_blocks_nest(stage: int) -> None:
    """The inner block may edit: for the outer one that is no surprise."""

    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        with gathered(model):
            with gathered(model, "0.bias"):
                assert model[0].bias.shape == (5,)
            assert model[0].bias.sum().isfinite()
            with gathered(model, "0.bias", write_from=0), torch.no_grad():
                model[0].bias.fill_(2.0)
            assert (model[0].bias == 2).all() and model(torch.ones(1, 6)).shape == (1, 2)
        at_rest(model)
        got = inspect(model, "0.bias")
        assert got is not None and (got == 2).all()

    run_ranks({"dp": 2}, body)


@STAGES
def test_a_penalty_on_weights_has_its_gradient(stage: int) -> None:
    def penalised(model: nn.Module, step: int, rank: int) -> Tensor:
        if not hasattr(model, "shardlab_sharding"):
            return loss(model, step, rank) + 0.1 * sum(p.square().sum() for p in model.parameters())
        with gathered(model):
            penalty = sum(p.square().sum() for p in model.parameters())
        return loss(model, step, rank) + 0.1 * penalty

    check(Task(layers, penalised), stages=[stage])


@STAGES
def test_a_penalty_on_frozen_weights_alone_leaves_nothing_gathered(stage: int) -> None:
    """A backward that reaches no module and no trained parameter of the model gathers through a saved tensor only."""

    def body(mesh: Mesh) -> None:
        model = fresh(TASK)
        model[0].requires_grad_(False)
        model, _ = shard(model, trained_only, mesh["dp"], stage=stage)
        factor = torch.ones(5, 6, requires_grad=True)
        with gathered(model, "0.weight"):
            value = (model[0].weight * factor).sum()
        value.backward()
        at_rest(model)
        assert factor.grad is not None and torch.equal(factor.grad, fresh(TASK)[0].weight)

    run_ranks({"dp": 2}, body)


def trained_only(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in params if p.requires_grad], lr=0.1)  # type: ignore[attr-defined]


@STAGES
def test_an_exception_in_the_block_frees_and_is_raised(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        with pytest.raises(ZeroDivisionError), gathered(model):
            1 / 0  # noqa: B018
        at_rest(model)

    run_ranks({"dp": 2}, body)


@STAGES
def test_numpy_views_taken_inside_stay_right(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, stage)
        with gathered(model, "0.weight"):
            seen = model[0].weight.detach().numpy()
            kept = seen.copy()
        for step in range(3):
            loss(model, step, 0).backward()
        assert (seen == kept).all()

    run_ranks({"dp": 2}, body)


@STAGES
def test_inspect_reads_every_state(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh, stage)
        alone = fresh(TASK)
        judge = TASK.optimizer(alone.parameters())
        assert inspect(model, "0.weight", "grad") is None and inspect(model, "0.weight", "exp_avg") is None
        loss(model, 0, 0).backward()
        loss(alone, 0, 0).backward()
        for name, p in alone.named_parameters():
            got = inspect(model, name, "grad")
            assert got is not None and torch.allclose(got, p.grad, atol=1e-7)
        optimizer.step()
        judge.step()
        for name, p in alone.named_parameters():
            for key, want in judge.state[p].items():
                got = inspect(model, name, key)
                assert got is not None and got.shape == want.shape and torch.allclose(got, want, atol=1e-7), key
        assert inspect(model, "0.weight", "no such state") is None
        with pytest.raises(KeyError, match=r"'0\.weigth'.*nearest.*'0\.weight'"):
            inspect(model, "0.weigth")
        with pytest.raises(KeyError, match=r"nearest"), gathered(model, "nothing"):
            pass

    run_ranks({"dp": 3}, body)


def test_what_was_not_sharded_is_refused() -> None:
    with pytest.raises(ValueError, match="was not sharded"):
        inspect(layers(), "0.weight")


def test_reading_costs_one_gather_of_the_units_concerned() -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh, 3)
        pool = sharding(model).pool
        with gathered(model, "0.weight"):
            assert pool.lent_bytes == 4 * sharding(model).units[0].numel
        assert pool.lent_bytes == 0
        assert whole(model)["0.weight"].shape == (5, 6)

    run_ranks({"dp": 2}, body)
