"""One model of each awkward kind against a plain process: bit for bit, at rest after each step, no buffer lost."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from tests.zero.plain import Task, check, numbers, tokens


def square(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)


def next_token(model: nn.Module, step: int, rank: int) -> Tensor:
    ids = tokens(11, 3, 5, step=step, rank=rank)
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


class Twice(nn.Module):
    """The second call of a layer comes after another layer has been gathered and freed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))))


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gain


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.none = nn.Parameter(torch.empty(0, 6))
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x), x @ self.none.t()], 1)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(6) * i) for i in (1, 2))
        self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.zeros(6)), "b": nn.Parameter(torch.ones(6))})
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for gain, shift in zip(self.gains, self.shifts.values(), strict=True):
            x = self.layer(x * gain + shift)
        return x


class Attention(nn.Module):
    """nn.MultiheadAttention reads the weights of its output projection without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        return self.head(self.inner(x, x, x)[0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[None])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(6, 4, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[None])[0]


class Embedded(nn.Module):
    """Integer input: no gradient reaches the embedding's input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Record:
    both: Pair
    extra: dict[str, list[Tensor]]


class Structured(nn.Module):
    """Inputs by keyword, outputs in a dataclass of tuples and mappings."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Branch(), Branch(), nn.Linear(6, 2)

    def forward(self, *, x: Tensor, flag: bool, unused: None = None) -> Record:
        assert flag
        first = self.a(values={"x": x})
        second = self.b(values={"x": first.both.left})
        return Record(second.both, {"all": [first.both.right, self.c(second.extra["all"][0])]})


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, values: dict[str, Tensor]) -> Record:
        y = self.layer(values["x"])
        return Record(Pair(y, y * 2), {"all": [y.tanh()]})


def structured_loss(model: nn.Module, step: int, rank: int) -> Tensor:
    out = model(x=numbers(3, 6, step=step, rank=rank), flag=True)
    return out.both.left.square().mean() + out.both.right.mean() + sum(x.square().mean() for x in out.extra["all"])


class Opaque:
    """An output of which hooks know nothing."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Opaque:
        return Opaque(self.b(torch.tanh(self.a(x))))


class Prompt(nn.Module):
    """A module whose output is a view of its weight, used after the module is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.soft, self.layer = Soft(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat([self.soft(), x])).tanh()


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(1, 6))

    def forward(self) -> Tensor:
        return self.value.expand(2, 6)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4).t())
        self.conv = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).sum() + self.conv(x[None, None]).sum()


class Quantised(nn.Module):
    """Frozen integers beside trained weights."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randint(0, 255, (6, 6), dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.codes.float() / 255 * self.scale)


def mlp(*sizes: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


def freeze(*names: str) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            if name in names:
                p.requires_grad_(False)

    return prepare


def trained_only(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-2)


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 2))


def new_norms() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        parametrizations.spectral_norm(nn.Linear(6, 2)),
    )


TASKS = {
    "tied": Task(Tied, next_token),
    "called twice": Task(Twice, square),
    "frozen below": Task(lambda: mlp(6, 6, 6, 2), square, trained_only, prepare=freeze("0.weight", "0.bias")),
    "frozen above": Task(lambda: mlp(6, 6, 6, 2), square, trained_only, prepare=freeze("2.weight", "2.bias")),
    "partly trained": Task(lambda: mlp(6, 6, 6, 2), square, trained_only, prepare=freeze("0.bias", "1.weight")),
    "unused": Task(Unused, square),
    "scalar": Task(Scalar, square),
    "empty": Task(Empty, square),
    "odd sizes": Task(lambda: mlp(6, 13, 7, 1), square),
    "smaller than the ranks": Task(lambda: nn.Sequential(nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 1)), square),
    "lists of parameters": Task(Lists, square),
    "attention": Task(Attention, square),
    "encoder": Task(Encoder, square),
    "recurrent": Task(Recurrent, square),
    "integer input": Task(Embedded, next_token),
    "frozen embedding": Task(Embedded, next_token, trained_only, prepare=freeze("embed.weight")),
    "structured": Task(Structured, structured_loss),
    "opaque output": Task(Hidden, lambda m, s, r: m(numbers(3, 6, step=s, rank=r)).value.square().mean()),
    "weight norm, old": Task(old_weight_norm, square),
    "parametrizations": Task(new_norms, square),
    "frozen integers": Task(Quantised, square, trained_only),
    "root of its own": Task(lambda: nn.Linear(6, 2), square),
    "data parallel wrapper": Task(lambda: nn.DataParallel(mlp(6, 6, 2)), square),
}


@pytest.mark.parametrize("name", TASKS)
def test_equals_a_plain_process(name: str) -> None:
    check(TASKS[name])


def test_a_parameter_that_is_not_contiguous() -> None:
    """A unit lays its parameters out row by row, so products may round otherwise than over the original strides."""
    check(Task(Transposed, lambda m, s, r: m(numbers(6, 6, step=s, rank=r)).square()), within=1e-6)


def test_a_view_of_a_weight_that_outlives_its_module_stays_right() -> None:
    check(Task(Prompt, square), lost=None)


def test_three_ranks_and_units_of_ones_own_choice() -> None:
    check(Task(Twice, square), ranks=3)
    check(Task(lambda: mlp(6, 13, 7, 1), square), ranks=3, units=[nn.Linear])
