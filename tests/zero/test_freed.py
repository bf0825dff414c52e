"""Every way to touch a freed parameter ends in an error that names it and `gathered`, never in a crash or a value."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlab.comm import Mesh, run_ranks
from shardlab.zero import FreedParameterError, gathered, shard
from shardlab.zero.freed import freed_type, placeholder
from tests.zero.plain import at_rest

X = torch.ones(6, 6)

TOUCHES: dict[str, Callable[[nn.Module, Any], object]] = {
    "add": lambda m, p: p + 1,
    "radd": lambda m, p: 1 + p,
    "mul by a tensor": lambda m, p: X * p,
    "matmul": lambda m, p: X @ p,
    "sum": lambda m, p: p.sum(),
    "norm": lambda m, p: p.norm(),
    "equal": lambda m, p: torch.equal(p, X),
    "compare": lambda m, p: p == p,
    "bool": lambda m, p: bool(p),
    "float": lambda m, p: float(p),
    "item": lambda m, p: p.item(),
    "tolist": lambda m, p: p.tolist(),
    "iterate": lambda m, p: list(p),
    "index": lambda m, p: p[0],
    "assign to an index": lambda m, p: p.__setitem__(0, 1.0),
    "clone": lambda m, p: p.clone(),
    "detach": lambda m, p: p.detach(),
    "data": lambda m, p: p.data,
    "set data": lambda m, p: setattr(p, "data", X),
    "transpose": lambda m, p: p.t(),
    "T": lambda m, p: p.T,
    "view": lambda m, p: p.view(-1),
    "add_": lambda m, p: p.add_(1),
    "copy_ into": lambda m, p: p.copy_(X),
    "copy_ from": lambda m, p: X.clone().copy_(p),
    "out": lambda m, p: torch.add(X, X, out=p),
    "to dtype": lambda m, p: p.to(torch.float64),
    "half": lambda m, p: p.half(),
    "cpu": lambda m, p: p.cpu(),
    "numpy": lambda m, p: p.numpy(),
    "numpy.asarray": lambda m, p: np.asarray(p),
    "numpy.array": lambda m, p: np.array(p),
    "data_ptr": lambda m, p: p.data_ptr(),
    "untyped_storage": lambda m, p: p.untyped_storage(),
    "storage_offset": lambda m, p: p.storage_offset(),
    "dlpack": lambda m, p: torch.from_dlpack(p),
    "nn.Parameter": lambda m, p: nn.Parameter(p),
    "stack": lambda m, p: torch.stack([X, p]),
    "foreach": lambda m, p: torch._foreach_add([p], 1.0),
    "aten": lambda m, p: torch.ops.aten.add(p, 1),
    "linear": lambda m, p: F.linear(X, p),
    "init": lambda m, p: nn.init.zeros_(p),
    "format": lambda m, p: f"{p:.3f}",
    "share_memory_": lambda m, p: p.share_memory_(),
    "copy": lambda m, p: copy.copy(p),
    "deepcopy": lambda m, p: copy.deepcopy(p),
    "pickle": lambda m, p: pickle.dumps(p),
    "torch.save": lambda m, p: torch.save(p, io.BytesIO()),
    "parameters_to_vector": lambda m, p: nn.utils.parameters_to_vector(m.parameters()),
    "state_dict": lambda m, p: m.state_dict(),
    "load_state_dict": lambda m, p: m.load_state_dict({"0.weight": X, "0.bias": X[0], "1.weight": X, "1.bias": X[0]}),
    "model.to": lambda m, p: m.to(torch.float64),
    "model.half": lambda m, p: m.half(),
    "another module's call": lambda m, p: F.relu(m[0].weight),
    "functional_call": lambda m, p: torch.func.functional_call(nn.Linear(6, 6), {"weight": p}, (X,)),
}


UNSEEN: dict[str, Callable[[Any], Tensor]] = {
    "torch.tensor": lambda p: torch.tensor(p),
    "torch.as_tensor": lambda p: torch.as_tensor(p, dtype=torch.float64),
    "torch.asarray": lambda p: torch.asarray(p, copy=True),
    "new_tensor": lambda p: X.new_tensor(p),
    "as_subclass": lambda p: p.as_subclass(Tensor),
}


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


def sharded(mesh: Mesh, stage: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    return shard(two_layers(), lambda params: torch.optim.SGD(params, lr=0.1), mesh["dp"], stage=stage)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("touch", TOUCHES)
def test_a_touch_is_an_error_that_names_the_parameter(touch: str) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = sharded(mesh)
        p = model[0].weight
        with pytest.raises(RuntimeError, match=r"'0\.weight'[\s\S]*gathered\("):
            TOUCHES[touch](model, p)
        assert p is model[0].weight and p.shape == (6, 6)
        model(X).sum().backward()  # the touch has broken nothing
        at_rest(model)

    run_ranks({"dp": 1}, body)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("touch", UNSEEN)
def test_what_asks_no_subclass_reads_nan(touch: str) -> None:
    """These copy in C without asking: no error is possible, so the value must show."""

    def body(mesh: Mesh) -> None:
        model, _ = sharded(mesh)
        assert UNSEEN[touch](model[0].weight).isnan().all()

    run_ranks({"dp": 1}, body)


@pytest.mark.parametrize(
    ("touch", "called"), [("add", "add"), ("data", "data"), ("stack", "stack"), ("numpy", "numpy")]
)
def test_the_error_says_what_was_asked(touch: str, called: str) -> None:
    def body(mesh: Mesh) -> None:
        model, _ = sharded(mesh)
        with pytest.raises(FreedParameterError, match=rf"^{called}: parameter '0\.weight'"):
            TOUCHES[touch](model, model[0].weight)

    run_ranks({"dp": 1}, body)


def test_what_needs_no_values_still_works() -> None:
    def body(mesh: Mesh) -> None:
        model, optimizer = sharded(mesh)
        p, alike = model[0].weight, two_layers()[0].weight
        assert isinstance(p, nn.Parameter) and isinstance(p, Tensor) and torch.is_tensor(p)
        for name in (
            "shape",
            "dtype",
            "device",
            "layout",
            "requires_grad",
            "is_leaf",
            "ndim",
            "grad",
            "nbytes",
            "itemsize",
        ):
            assert getattr(p, name) == getattr(alike, name), name
        for name in ("size", "dim", "numel", "element_size", "is_floating_point", "__len__", "get_device"):
            assert getattr(p, name)() == getattr(alike, name)(), name
        assert torch.numel(p) == 36 and torch.is_floating_point(p) and not torch.is_complex(p)
        assert p in {p} and hash(p) == hash(p) and p is not alike
        for shown in (repr(p), str(p), f"{p}"):
            assert "'0.weight'" in shown and "sharded" in shown and "(6, 6)" in shown
        assert "Linear" in repr(model) and "'1.bias'" in repr(list(model.parameters()))
        assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert sum(p.numel() for p in model.parameters()) == 84
        p.requires_grad_(True)
        p.grad = None
        model.train().eval().zero_grad()
        optimizer.zero_grad()

    run_ranks({"dp": 2}, body)


def test_a_freed_parameter_is_a_subclass_of_its_own_type() -> None:
    class Mine(nn.Parameter):
        pass

    freed = freed_type(Mine)
    assert issubclass(freed, Mine) and freed_type(Mine) is freed and freed is not freed_type(nn.Parameter)
    p = Mine(torch.ones(2, 3))
    p.data = placeholder(p)
    p.__class__ = freed
    assert p.shape == (2, 3)
    with pytest.raises(FreedParameterError):
        p.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_placeholder_owns_one_element_and_no_plausible_value(dtype: torch.dtype) -> None:
    """Code in C that knows nothing of subclasses would read it: NaN shows, zeros or old memory would not."""
    held = placeholder(torch.zeros(1000, 3, dtype=dtype))
    assert held.shape == (1000, 3) and held.dtype == dtype
    assert held.untyped_storage().nbytes() == dtype.itemsize
    if dtype.is_floating_point:
        assert held.isnan().all()


def test_identity_survives_and_values_return() -> None:
    def body(mesh: Mesh) -> None:
        want = {name: p.detach().clone() for name, p in two_layers().named_parameters()}
        model, _ = sharded(mesh)
        before = list(model.parameters())
        with gathered(model):
            assert all(type(p) is nn.Parameter for p in model.parameters())
            assert all(torch.equal(p, want[name]) for name, p in model.named_parameters())
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        assert all(type(p).__name__ == "FreedParameter" for p in before)

    run_ranks({"dp": 2}, body)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "copy_it", [copy.deepcopy, lambda model: torch.save(model, io.BytesIO())], ids=["deepcopy", "save"]
)
def test_a_copy_of_a_sharded_model_is_refused_by_name(stage: int, copy_it: Callable[[nn.Module], object]) -> None:
    """The copy would share hooks, buffers and the communicator with the original."""

    def body(mesh: Mesh) -> None:
        model, _ = sharded(mesh, stage)
        with pytest.raises(TypeError, match=r"sharded[\s\S]*state_dict\(\)"):
            copy_it(model)
        with gathered(model):
            kept = copy.deepcopy(model.state_dict())
        assert set(kept) == {"0.weight", "0.bias", "1.weight", "1.bias"}

    run_ranks({"dp": 2}, body)
