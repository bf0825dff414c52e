"""Gathering and freeing: what is live when, what is fetched ahead, and that ranks stay in step."""

import pytest
import torch
from torch import Tensor, nn

from shardlab.comm import DivergedError, Mesh, run_ranks
from shardlab.zero import gathered, shard
from shardlab.zero.unit import Unit, UnitState
from tests.zero.plain import Task, at_rest, fresh, numbers, plain, same, sharding, whole


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


TASK = Task(layers, loss)


def start(mesh: Mesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    return shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=3)


def live(model: nn.Module) -> list[str]:
    return [unit.name for unit in sharding(model).units if unit.state is not UnitState.SHARDED]


def test_one_unit_is_live_in_the_first_pass_and_the_next_is_fetched_from_the_second_on() -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh)
        seen: list[list[str]] = []
        for layer in model:
            layer.register_forward_hook(lambda *_: seen.append(live(model)))
        loss(model, 0, mesh["dp"].index).backward()
        first, seen[:] = list(seen), []
        loss(model, 1, mesh["dp"].index).backward()
        # a layer's own hook runs after ours, which has freed it
        assert first == [[], [], [], []]
        assert seen == [["1"], ["2"], ["3"], []]
        pool = sharding(model).pool
        assert pool.peak_bytes <= 2 * 4 * sharding(model).units[0].numel + 2 * 4 * sharding(model).units[0].numel
        at_rest(model)

    run_ranks({"dp": 2}, body)


def test_gathers_of_one_step() -> None:
    """Once in forward and once in backward; the last unit's second gather is due at once."""

    def body(mesh: Mesh) -> list[str]:
        model, _ = start(mesh)
        gatherer = sharding(model).gatherer
        assert gatherer is not None
        names: list[str] = []
        original = gatherer._finish

        def finish(unit: Unit) -> None:
            names.append(unit.name)
            original(unit)

        gatherer._finish = finish  # type: ignore[method-assign]
        for step in range(3):
            names.clear()
            loss(model, step, mesh["dp"].index).backward()
        return names

    assert run_ranks({"dp": 2}, body) == [["0", "1", "2", "3", "3", "2", "1", "0"]] * 2


def test_prefetch_or_not_gives_the_same_bits() -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh)
        gatherer = sharding(model).gatherer
        assert gatherer is not None
        gatherer.prefetch = False
        for step in range(TASK.steps):
            loss(model, step, mesh["dp"].index).backward()
            optimizer.step()
            optimizer.zero_grad()
        same(whole(model), plain(TASK, 2))

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("when", ["before backward", "between steps"])
def test_one_rank_alone_may_use_a_gathered_model(when: str) -> None:
    """As when rank 0 evaluates or writes a sample: nothing is gathered in that forward, so nothing is out of step."""

    def body(mesh: Mesh) -> None:
        model, optimizer = start(mesh)
        for step in range(TASK.steps):
            value = loss(model, step, mesh["dp"].index)
            if when == "between steps":
                value.backward()
            with gathered(model), torch.no_grad():
                if mesh["dp"].index == 0:
                    for extra in range(3):
                        model(numbers(1, 6, step=extra, rank=9))
            if when == "before backward":
                value.backward()
            optimizer.step()
            optimizer.zero_grad()
        same(whole(model), plain(TASK, 2))

    run_ranks({"dp": 2}, body)


def test_a_divergence_says_what_each_rank_was_to_do_and_for_which_time() -> None:
    def body(mesh: Mesh) -> str:
        model, _ = start(mesh)
        with pytest.raises(DivergedError) as caught:
            x = model[0](numbers(1, 6, step=0, rank=0))
            for _ in range(1 + mesh["dp"].index):
                x = model[1](x)
            x = model[2](x)
        return str(caught.value)

    for text in run_ranks({"dp": 2}, body):
        assert "rank 0: gather" in text and "'2'" in text and "rank 1: gather" in text and "(time 2) '1'" in text


def test_every_rank_raises_when_one_gathers_what_the_other_reduces() -> None:
    def body(mesh: Mesh) -> None:
        model, _ = start(mesh)
        value = loss(model, 0, 0)
        with pytest.raises(DivergedError, match=r"'3'|'0'"):
            if mesh["dp"].index == 0:
                value.backward()
            else:
                loss(model, 1, 0)

    run_ranks({"dp": 2}, body, timeout_s=20)
