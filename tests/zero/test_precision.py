import pytest
import torch
from torch import nn

from shardlab.zero import Precision
from shardlab.zero.precision import Dtypes, dtypes_of, own_dtypes, torch_dtype

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", BF16), ("fp32", F32), ("fp16", F16), ("fp64", F64), ("torch.float32", F32)]
)
def test_short_names(name: str, dtype: torch.dtype) -> None:
    assert torch_dtype(name) is dtype


def test_a_name_that_cannot_be_trained_in_lists_the_others() -> None:
    with pytest.raises(ValueError, match=r"dtype 'int8' is not one to train in; valid are fp64, fp32, bf16, fp16"):
        torch_dtype("int8")
    with pytest.raises(ValueError, match="fp33"):
        Precision(compute="fp33")
    with pytest.raises(ValueError, match="int8"):
        Precision(master="int8")


def test_the_defaults_sum_and_learn_in_fp32() -> None:
    assert Precision(compute="bf16").of(F32) == Dtypes(compute=BF16, reduce=F32, accumulate=F32, master=F32)


def test_without_a_compute_dtype_each_parameter_keeps_its_own() -> None:
    assert Precision().of(BF16) == Dtypes(BF16, F32, F32, F32)
    assert Precision().of(F64) == own_dtypes(F64), "fp64 is not rounded by a default"
    assert Precision(compute="bf16").of(F64).compute is BF16


def test_what_is_not_floating_is_left_alone() -> None:
    assert Precision(compute="bf16").of(torch.int64) == own_dtypes(torch.int64)


def test_each_dtype_is_its_own() -> None:
    precision = Precision(compute="fp16", reduce="bf16", accumulate="fp64", master="fp64")
    assert precision.of(F32) == Dtypes(F16, BF16, F64, F64)


@pytest.mark.parametrize("scale", ["dynamic", 1024.0])
def test_loss_scaling_is_not_built(scale: float) -> None:
    with pytest.raises(ValueError, match=r"precision.loss_scale is .*: loss scaling is not built yet, use bf16"):
        Precision(loss_scale=scale)


def test_non_finite_policies() -> None:
    with pytest.raises(ValueError, match=r"precision.non_finite is 'drop', valid are 'skip', 'raise', 'ignore'"):
        Precision(non_finite="drop")  # type: ignore[arg-type]


def test_norms_with_running_statistics_compute_in_the_dtype_of_those() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    found = dtypes_of(model, Precision(compute="bf16"))
    assert [found[p].compute for p in model.parameters()] == [BF16, BF16, F32, F32, BF16, BF16]
    assert {found[p] for p in model[1].parameters()} == {Dtypes(F32, F32, F32, F32)}
    assert set(dtypes_of(model, None).values()) == {own_dtypes(F32)}
