"""State counted from tensors."""

from __future__ import annotations

import torch
from torch import nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import Precision, account, shard
from shardlab.zero.sharding import sharding_of


class Shift(nn.Module):
    """Two trained vectors, and buffers of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(30)), nn.Parameter(torch.zeros(30))
        self.register_buffer("mean", torch.zeros(2, 30))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.bias


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(10, 30), Shift(), nn.Linear(30, 5))
    made[0].bias.requires_grad_(False)
    return made


TRAINED, FROZEN = 300 + 60 + 155, 30
BUFFERS = 2 * 30 * 4 + 8


def counted(mesh: Mesh, stage: int, precision: Precision | None) -> dict[str, dict[str, int]]:
    made, optimizer = shard(model(), torch.optim.AdamW, mesh["dp"], stage=stage, precision=precision)
    found = {"fresh": account.held_bytes(made)}
    for _ in range(2):
        made(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found["state"], found["held"] = account.state_bytes(made), account.held_bytes(made)
    found["pool"] = {"kept": account.pooled_bytes(made), "said": sharding_of(made).pool.kept_bytes}
    return found


def test_one_rank_holds_everything() -> None:
    (found,) = run_ranks({"dp": 1}, counted, 0, None)
    state = found["state"]
    assert state["parameters"] == 4 * (TRAINED + FROZEN)
    assert state["gradients"] == 4 * TRAINED
    assert state["optimizer"] == 8 * TRAINED + 4 * 5  # two moments; a step counter for each of five trained tensors
    assert state["buffers"] == BUFFERS
    assert sum(state.values()) == sum(found["held"].values())
    assert found["fresh"]["gradients"] == found["fresh"]["optimizer"] == 0


def test_what_each_stage_shares() -> None:
    shares = {}
    for stage in range(4):
        ranks = run_ranks({"dp": 2}, counted, stage, Precision(compute="bf16"))
        shares[stage] = ranks[0]["state"]
        for found in ranks:
            assert sum(found["state"].values()) == sum(found["held"].values())
            assert found["pool"]["kept"] == found["pool"]["said"]
    assert [shares[stage]["parameters"] for stage in range(4)] == [2 * (TRAINED + FROZEN)] * 3 + [TRAINED + FROZEN]
    assert [shares[stage]["gradients"] for stage in range(4)] == [4 * TRAINED] * 2 + [2 * TRAINED] * 2
    moments = [shares[stage]["optimizer"] // 4 for stage in range(4)]
    assert moments[0] == 3 * TRAINED + 5
    assert all(3 * TRAINED // 2 < moments[stage] <= 3 * TRAINED // 2 + 6 for stage in (1, 2, 3))
    assert [shares[stage]["buffers"] - BUFFERS for stage in range(4)] == [0, 2 * TRAINED, 0, 0]


def test_a_shard_larger_than_it_should_be_is_seen() -> None:
    def grown(mesh: Mesh) -> int:
        made, _ = shard(model(), torch.optim.AdamW, mesh["dp"], stage=3)
        before = account.held_bytes(made)["parameters"]
        group = sharding_of(made).units[0].groups[0]
        group.shard = torch.empty(2 * group.shard.numel())[: group.shard.numel()].copy_(group.shard)
        return account.held_bytes(made)["parameters"] - before

    assert all(more > 0 for more in run_ranks({"dp": 2}, grown))
