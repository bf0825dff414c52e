import pytest
import torch
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import shard
from shardlab.zero.sharding import Sharding, is_sharded, sharding_of
from tests.models import GPT


def sharded(mesh: Mesh) -> tuple[nn.Module, torch.optim.Optimizer, Sharding]:
    model, optimizer = shard(GPT(), torch.optim.AdamW, mesh["dp"], stage=2)
    return model, optimizer, sharding_of(model)


def test_model_and_optimizer_lead_to_the_same_parts() -> None:
    model, optimizer, parts = run_ranks({"dp": 1}, sharded)[0]
    assert sharding_of(optimizer) is parts
    assert parts.model is model and parts.optimizer is optimizer
    assert is_sharded(model) and not is_sharded(model.blocks)
    assert set(model.state_dict()) == set(GPT().state_dict()), "it is no module, parameter or buffer of the model"


def test_what_was_not_sharded_says_so() -> None:
    with pytest.raises(ValueError, match=r"this GPT was not sharded: pass what shardlab.zero.shard returned"):
        sharding_of(GPT())


def test_find() -> None:
    _, _, parts = run_ranks({"dp": 1}, sharded)[0]
    unit, group, member = parts.find("blocks.1.qkv.bias")
    assert unit.name == "blocks.1"
    assert group in unit.groups and member in group.members
    assert member.param is parts.model.blocks[1].qkv.bias


def test_a_name_that_is_not_there_lists_the_nearest() -> None:
    _, _, parts = run_ranks({"dp": 1}, sharded)[0]
    with pytest.raises(KeyError, match=r"no parameter 'blocks.1.qvk.bias'; nearest are .*'blocks.1.qkv.bias'"):
        parts.find("blocks.1.qvk.bias")


def test_trained_groups_are_in_registration_order() -> None:
    _, _, parts = run_ranks({"dp": 1}, sharded)[0]
    assert [g.unit.name for g in parts.trained_groups] == [unit.name for unit in parts.units]
