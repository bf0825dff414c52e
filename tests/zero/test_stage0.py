import torch

from shardlab.zero.sharding import Sharding
from shardlab.zero.stage0 import refresh
from tests.zero.test_unit import group_of
from tests.zero.watching import BACKWARD, watched


def held(sharding: Sharding) -> list[tuple[bool, int, int]]:
    return [
        (g.full is not None, g.shard.numel(), 0 if g.acc is None else g.acc.numel()) for g in sharding.trained_groups
    ]


def test_gradients_are_summed_by_one_all_reduce_a_unit() -> None:
    for step in watched(0, {"dp": 3}, held):
        assert step.forward == []
        assert step.backward == [("all_reduce", name) for name in BACKWARD]
        assert step.step == []


def test_every_rank_holds_everything() -> None:
    for step in watched(0, {"dp": 3}, held):
        for full, shard, acc in step.seen["backward"]:
            assert full
            assert shard == acc > 0


def test_the_send_buffers_go_back() -> None:
    for step in watched(0, {"dp": 2}, lambda s: ([g.sending for g in s.trained_groups], s.pool.lent_bytes)):
        sending, lent = step.seen["backward"]
        assert sending == [None] * 6
        assert lent == 0


def test_refresh_rounds_masters_into_compute_weights() -> None:
    group = group_of([3], 1, 0)
    group.shard, group.master = torch.zeros(16, dtype=torch.bfloat16), torch.linspace(1, 2, 16)
    refresh([group.unit])
    assert torch.equal(group.shard, group.master.bfloat16())
