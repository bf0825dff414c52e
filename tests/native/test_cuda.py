"""On a GPU the CUDA kernels give the bits of the fallback on the CPU. (Without one: test_cuda_on_cpu.py.)"""

import pytest
import torch

from shardlab.native import adamw, cast, fallback, kernels, sum_ranks

pytestmark = pytest.mark.skipif(
    kernels._cuda is None or not torch.cuda.is_available(),
    reason="needs the CUDA module, torch for CUDA and a GPU",
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sum_ranks(dtype: torch.dtype) -> None:
    chunks = random(5, 100_003).to(dtype)
    out, expected = torch.empty(100_003, dtype=dtype, device="cuda"), torch.empty(100_003, dtype=dtype)
    sum_ranks(chunks.cuda(), out)
    fallback.sum_ranks(list(chunks), expected)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cast(dtype: torch.dtype) -> None:
    x = random(100_003) * torch.logspace(-12, 6, 100_003)
    half, back = torch.empty(100_003, dtype=dtype, device="cuda"), torch.empty(100_003, device="cuda")
    cast(x.cuda(), half)
    assert torch.equal(half.cpu(), x.to(dtype))
    cast(half, back)
    assert torch.equal(back.cpu(), x.to(dtype).float())


@pytest.mark.parametrize("decoupled", [True, False])
def test_adamw(decoupled: bool) -> None:
    start, grads = random(100_003), random(3, 100_003).to(torch.bfloat16)
    sets = []
    for device in ("cuda", "cpu"):
        p, m, v = start.to(device, copy=True), *torch.zeros(2, 100_003, device=device)
        copy = torch.empty(100_003, dtype=torch.bfloat16, device=device)
        for step in (1, 2, 3):
            adamw(p, m, v, grads[step - 1].to(device), step=step, lr=1e-2, decoupled=decoupled, copy=copy)
        sets.append([x.cpu() for x in (p, m, v, copy)])
    assert all(torch.equal(x, y) for x, y in zip(*sets, strict=True))


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chunks\[0\] is on cpu and out on cuda:0"):
        sum_ranks([torch.zeros(4)], torch.zeros(4, device="cuda"))
