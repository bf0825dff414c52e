"""Gradients that no hook sees, such as those of a split backward, given by hand."""

import pytest
import torch
from torch import nn

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import grad_sink, shard
from tests.zero.gain import STAGES, Net, loss, sgd
from tests.zero.plain import Task, Weights, fresh, same, whole


@STAGES
def test_gradients_given_by_hand_through_the_sink(stage: int) -> None:
    """What a split backward, which fires no hooks, would use."""

    def body(mesh: Mesh) -> Weights:
        task = Task(Net, loss, sgd)
        model, optimizer = shard(fresh(task), task.optimizer, mesh["dp"], stage=stage)
        alone = fresh(task)
        sink = grad_sink(model)
        for micro_batch in range(2):
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                sink.add(p, torch.full_like(q, 1.0 + mesh["dp"].index + micro_batch), micro_batch)
            sink.end(micro_batch)
        with pytest.raises(ValueError, match="not a trained one"):
            sink.add(nn.Parameter(torch.ones(2)), torch.ones(2), 0)
        with pytest.raises(ValueError, match=r"'gain' has shape \(\).*\(2,\)"):
            sink.add(model.gain, torch.ones(2), 0)
        optimizer.step()
        return whole(model)

    want = {name: p.detach() - 0.1 * 4.0 for name, p in fresh(Task(Net, loss)).named_parameters()}
    for got in run_ranks({"dp": 2}, body):
        same(got, want, within=1e-6)
