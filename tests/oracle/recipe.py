"""What is trained and how, and what came out of it: the terms in which runs are compared."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.zero import Precision
from tests.models import TASKS, Batch, Task

Params = Iterable[nn.Parameter]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": lambda p, **kw: torch.optim.AdamW(p, **{"lr": 1e-2, **kw}),
    "sgd": lambda p, **kw: torch.optim.SGD(p, **{"lr": 0.1, "momentum": 0.9, "nesterov": True, **kw}),
    "rmsprop": lambda p, **kw: torch.optim.RMSprop(p, **{"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1, **kw}),
    "adagrad": lambda p, **kw: torch.optim.Adagrad(p, **{"lr": 1e-2, "lr_decay": 0.1, **kw}),
}

STATE_KEYS = {
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
    "sgd": ("momentum_buffer",),
    "rmsprop": ("square_avg", "momentum_buffer", "step"),
    "adagrad": ("sum", "step"),
}


@dataclass(frozen=True)
class Recipe:
    """One training run, the same on every rank but for the batches.

    Attributes:
        optimizer: a key of OPTIMIZERS, or the name of a class of torch.optim.
        options: keyword arguments of the optimizer, as pairs.
        groups: two parameter groups, matrices decayed and the rest not, with other learning rates.
        clip: largest norm, or None.
        with_state: the optimizer's state belongs to the outcome.
    """

    model: str
    optimizer: str = "adamw"
    options: tuple[tuple[str, float], ...] = ()
    steps: int = 3
    micro_batches: int = 1
    clip: float | None = None
    groups: bool = False
    dtype: torch.dtype = torch.float32
    checkpointing: str | None = None
    precision: Precision | None = None
    with_state: bool = False

    @property
    def task(self) -> Task:
        return TASKS[self.model]

    def build(self) -> nn.Module:
        return self.task.build(self.dtype, self.checkpointing)

    def batch(self, step: int, micro_batch: int, rank: int) -> Batch:
        return self.task.batch(step, micro_batch, rank, self.dtype)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The share of one micro-batch in the mean over all of a step."""
        return self.task.loss(model, batch) / self.micro_batches

    def make_optimizer(self, params: Params) -> Optimizer:
        make, options = OPTIMIZERS.get(self.optimizer) or getattr(torch.optim, self.optimizer), dict(self.options)
        if not self.groups:
            return make(params, **options)
        listed = list(params)
        matrices = {"params": [p for p in listed if p.ndim >= 2], "weight_decay": 0.1}
        rest = {"params": [p for p in listed if p.ndim < 2], "weight_decay": 0.0, "lr": 3e-3}
        return make([rest, matrices], **options)


@dataclass
class Outcome:
    """What one rank ends with.

    Attributes:
        params: weights as forward reads them.
        grads: what the first step was made from, after accumulation and before clipping.
        state: the optimizer's, by parameter name and key.
        norms: before clipping, by step.
        losses: this rank's, by step and micro-batch.
        buffers: this rank's.
    """

    params: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def copies(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in named}


def differing(ours: Outcome, oracle: Outcome) -> list[str]:
    """What has other bits, by name; a thing that only one of them has differs."""
    found = []
    for kind in ("params", "grads", "buffers"):
        found += [f"{kind}: {name}" for name in _unequal(getattr(ours, kind), getattr(oracle, kind))]
    for name in ours.state.keys() | oracle.state.keys():
        keys = _unequal(ours.state.get(name, {}), oracle.state.get(name, {}))
        found += [f"state: {name}.{key}" for key in keys]
    found += [kind for kind in ("norms", "losses") if getattr(ours, kind) != getattr(oracle, kind)]
    return sorted(found)


def _unequal(ours: Mapping[str, Tensor], oracle: Mapping[str, Tensor]) -> list[str]:
    both = ours.keys() & oracle.keys()
    wrong = {name for name in both if not _same(ours[name], oracle[name])}
    return sorted((ours.keys() ^ oracle.keys()) | wrong)


def _same(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x, y)


def largest_difference(ours: Mapping[str, Tensor], oracle: Mapping[str, Tensor]) -> float:
    """Over all elements of all tensors; the names must be the same."""
    assert ours.keys() == oracle.keys() and ours
    return max((ours[name].double() - oracle[name].double()).abs().max().item() for name in ours)
