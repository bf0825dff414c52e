"""Reported elsewhere: deepspeedai/DeepSpeed pull request 8307, flagos-ai/FlagGems issue 4988."""

import pytest
import torch

from shardlab.native import adamw, kernels

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
