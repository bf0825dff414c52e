"""Tied weights: the part of TIE-05 of cases.yaml that needs no building on the meta device."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import inspect, shard
from tests.zero.plain import Task, check, fresh, sharding, tokens


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def next_token(model: nn.Module, step: int, rank: int) -> Tensor:
    ids = tokens(11, 3, 5, step=step, rank=rank)
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


TASK = Task(Decoder, next_token, lambda p: torch.optim.SGD(p, lr=0.1), steps=1)


def test_TIE_05_a_model_on_the_meta_device_is_refused_by_name() -> None:
    def body(mesh: Mesh) -> None:
        with torch.device("meta"):
            model = Decoder()
        with pytest.raises(ValueError, match=r"'embed\.weight'.*meta device"):
            shard(model, TASK.optimizer, mesh["dp"], stage=3)

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_TIE_05_both_names_stay_one_parameter(stage: int) -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = shard(fresh(TASK), TASK.optimizer, mesh["dp"], stage=stage)
        next_token(model, 0, mesh["dp"].index).backward()
        optimizer.step()
        assert model.head.weight is model.embed.weight
        names = [m.name for unit in sharding(model).units for g in unit.groups for m in g.members]
        assert "head.weight" not in names and names.count("embed.weight") == 1
        assert sum(p.numel() for p in model.parameters()) == 11 * 6 + 2 * (6 * 6 + 6)
        assert inspect(model, "embed.weight") is not None

    run_ranks({"dp": 2}, body)
    check(TASK, stages=[stage], within=1e-6)
