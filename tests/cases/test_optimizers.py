"""Optimizers: OPT-01 and OPT-03 of cases.yaml."""

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from shardlab.comm import Mesh, run_ranks
from shardlab.native import adamw, kernels
from shardlab.zero import inspect, shard

# After one and two steps from 1.0 with lr 0.1 and decay 0.1; equal to torch.optim.Adam and AdamW.
EXPECTED = {
    (0.5, False): (0.900000002, 0.800047340),
    (0.5, True): (0.890000002, 0.781100004),
    (-0.05, False): (0.900000020, 0.801187461),
    (-0.05, True): (1.089999980, 1.179099960),
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("gradient", "decoupled"), list(EXPECTED))
def test_OPT_01_l2_and_decoupled_decay_differ_as_in_torch(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, gradient: float, decoupled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels, "_core", None)
    elif kernels._core is None:
        pytest.skip("the C++ module is not built")
    p, m, v = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    reference = torch.nn.Parameter(p.clone())
    optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)([reference], lr=0.1, weight_decay=0.1)
    for step, value in enumerate(EXPECTED[gradient, decoupled], start=1):
        adamw(p, m, v, torch.tensor([gradient]), step=step, lr=0.1, weight_decay=0.1, decoupled=decoupled)
        reference.grad = torch.tensor([gradient])
        optimizer.step()
        assert p.item() == pytest.approx(value, abs=1e-6)
        assert reference.item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("gradient", "decoupled"), list(EXPECTED))
def test_OPT_01_l2_and_decoupled_decay_at_each_stage(stage: int, gradient: float, decoupled: bool) -> None:
    def body(mesh: Mesh) -> list[float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        shard(model, optimizer := kind(model.parameters(), lr=0.1, weight_decay=0.1), mesh["dp"], stage=stage)
        values = []
        for _ in range(2):
            model(torch.tensor([[gradient]])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(inspect(model, "weight").item())
        return values

    for values in run_ranks({"dp": 2}, body):
        assert values == pytest.approx(EXPECTED[gradient, decoupled], abs=1e-6)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020: a layer's update is scaled by the norm of the layer over the norm of its update."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01, eps: float = 1e-6) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                update = p.grad / (p.grad.abs() + group["eps"])  # first step, with corrected bias
                p.sub_(update, alpha=group["lr"] * (p.norm() / update.norm()).item())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_OPT_03_lamb_sees_whole_layers_or_is_refused_by_name(stage: int) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.tensor([0.3, 0.4]))

        def forward(self) -> torch.Tensor:
            return self.a @ torch.tensor([1.0, 2.0]) + self.b @ torch.tensor([2.0, -1.0])

    def body(mesh: Mesh) -> None:
        if stage:
            with pytest.raises(ValueError, match=rf"optimizer Lamb at stage {stage}.*elementwise.*stage 0"):
                shard(Layers(), Lamb, mesh["dp"], stage=stage)
            return
        model, optimizer = shard(Layers(), Lamb, mesh["dp"], stage=stage)
        model().backward()
        optimizer.step()
        assert (inspect(model, "b") - torch.tensor([0.296464, 0.403536])).abs().max() <= 1e-6
        assert (inspect(model, "a") - (torch.tensor([3.0, 4.0]) - 0.03535536)).abs().max() <= 1e-6

    run_ranks({"dp": 2}, body)
