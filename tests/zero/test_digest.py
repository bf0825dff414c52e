import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shardlab.comm import run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import shard
from shardlab.zero.digest import check_same_start, digest


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=40), st.data())
def test_any_changed_byte_changes_it(values: list[int], data: st.DataObject) -> None:
    x = torch.tensor(values, dtype=torch.int8)
    y = x.clone()
    y[data.draw(st.integers(0, len(values) - 1))] ^= data.draw(st.integers(1, 127))
    assert digest(x) != digest(y)
    assert digest(x) == digest(x.clone())


def test_order_and_sign_of_zero_matter() -> None:
    x = torch.tensor([1.0, 2.0, 0.0])
    assert digest(x) != digest(x[[1, 0, 2]])
    assert digest(x) != digest(torch.tensor([1.0, 2.0, -0.0]))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_of_all_dtypes_and_shapes(dtype: torch.dtype) -> None:
    x = torch.arange(6).to(dtype)
    assert digest(x) == digest(x.view(2, 3))
    assert digest(x.view(2, 3).T.contiguous().T) == digest(x), "values, not memory, are compared"
    assert digest(x[:0]) == 0
    assert digest(x[0]).shape == ()


def other_start(mesh: Mesh, name: str, rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    if mesh.rank == rank:
        with torch.no_grad():
            dict(model.named_parameters())[name][0] += 1e-6
    replicas = mesh["rep"] if "rep" in mesh.shape.axes else None
    shard(model, torch.optim.AdamW, mesh["dp"], stage=3, replicas=replicas)


@pytest.mark.parametrize("name", ["0.bias", "1.weight"])
def test_ranks_that_start_elsewhere_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"parameter '{name}' has other initial values on rank 2 than on rank 0"):
        run_ranks({"dp": 3}, other_start, name, 2)


def test_replicas_are_compared_too() -> None:
    with pytest.raises(ValueError, match=r"parameter '1.bias' has other initial values on rank \d than on rank \d"):
        run_ranks({"rep": 2, "dp": 1}, other_start, "1.bias", 1)


def test_nothing_to_compare() -> None:
    assert run_ranks({"dp": 2}, lambda mesh: check_same_start(nn.Identity(), [mesh["dp"]])) == [None, None]
