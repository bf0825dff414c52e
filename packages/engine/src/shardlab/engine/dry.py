"""One rank of many without the others: the real code on tensors that have shapes but no bytes.

    build -> shard -> forward, backward, step       the same functions that train
      FakeTensorMode    every operation gives a tensor of the right shape, dtype and storage size, and computes nothing
      dry_mesh          a communicator of N ranks that counts what it would post
      LiveBytes         counts the storages that are alive

The first step warms up: it allocates optimizer state and lets prefetch learn the order of units. The second is counted.

What it does not see is listed in `live`. Its kernels are those of the CPU: attention, norms and the loss of another
device may save other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.comm.dry import dry_mesh
from shardlab.comm.mesh import Mesh
from shardlab.comm.record import recording
from shardlab.engine.build import Decoder, build
from shardlab.engine.live import LiveBytes, StorageBytes
from shardlab.plan.ledger import Ledger
from shardlab.plan.plan import Plan
from shardlab.zero.account import held_bytes, pooled_bytes, state_bytes
from shardlab.zero.api import shard
from shardlab.zero.precision import Precision
from shardlab.zero.sharding import is_sharded, sharding_of

__all__ = ["DryRun", "OPTIMIZERS", "dry_run", "run_step", "saved_for_backward", "shard_plan"]

Batch = tuple[Tensor, Tensor]

OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-3),
    "sgd-momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-3),
}
"""Makers of the optimizers that a plan names."""


@dataclass(frozen=True)
class DryRun:
    """What one rank holds and posts, counted while the real code ran.

    Args:
        rank: Global rank.
        state: Bytes between steps by category, padding apart; they sum to the total.
        held: The same with each category's padding inside.
        pooled_bytes: Bytes of flat buffers kept for the next unit, between steps.
        saved_bytes: Most bytes of activations that autograd keeps when a forward has ended.
        resting_bytes: Bytes of all live tensors between steps.
        peak_bytes: Most bytes of live tensors at once, during the second step.
        start_bytes: Most bytes of live tensors at once while the model is built and sharded.
        ledger: The communicator calls of the second step.
    """

    rank: int
    state: dict[str, int]
    held: dict[str, int]
    pooled_bytes: int
    saved_bytes: int
    resting_bytes: int
    peak_bytes: int
    start_bytes: int
    ledger: Ledger

    @property
    def wire_bytes(self) -> dict[str, int]:
        """Bytes posted to other ranks in a step, by axis."""
        return {axis: total.wire_bytes for (axis,), total in self.ledger.totals("axis").items()}

    @property
    def calls(self) -> dict[str, dict[str, int]]:
        """Count and wire bytes of the calls of a step, by operation."""
        return {op: {"count": t.count, "wire_bytes": t.wire_bytes} for (op,), t in self.ledger.totals("op").items()}

    def to_dict(self) -> dict[str, object]:
        """Return a JSON-able description, without the single spans."""
        plain = {key: value for key, value in self.__dict__.items() if key != "ledger"}
        return {**plain, "wire_bytes": self.wire_bytes, "calls": self.calls}


def dry_run(plan: Plan, rank: int = 0, make: Callable[[], nn.Module] | None = None) -> DryRun:
    """Run the real code for one rank of a plan, with nothing computed and nothing sent.

    Args:
        plan: The plan.
        rank: Global rank to be.
        make: Makes the model in place of the plan's description; called as `model(ids, targets)`, it returns the loss.

    Returns:
        What was counted.

    Raises:
        ValueError: If there is no such rank, or the model cannot be built or run as the plan says.
    """
    with FakeTensorMode(), LiveBytes() as live:
        mesh = dry_mesh(plan.mesh.sizes, rank)
        model, optimizer = shard_plan(plan, mesh, make)
        start_bytes = live.peak_bytes
        run_step(plan, model, optimizer)
        live.restart()
        with recording(mesh.recorder) as ledger, saved_for_backward(model) as saved:
            run_step(plan, model, optimizer, lambda: saved.note())
        return DryRun(
            rank=rank,
            state=state_bytes(model),
            held=held_bytes(model),
            pooled_bytes=pooled_bytes(model),
            saved_bytes=saved.most_bytes,
            resting_bytes=live.now_bytes,
            peak_bytes=live.peak_bytes,
            start_bytes=start_bytes,
            ledger=ledger,
        )


def shard_plan(
    plan: Plan, mesh: Mesh, make: Callable[[], nn.Module] | None = None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build the model of a plan and shard it with its optimizer, on any mesh, dry or not.

    Args:
        plan: The plan.
        mesh: Ranks with an axis dp.
        make: Makes the model in place of the plan's description.
    """
    model = build(plan.model, plan.recompute) if make is None else make()
    model, optimizer = shard(
        model,
        OPTIMIZERS[plan.optimizer],
        mesh["dp"],
        stage=plan.zero,
        precision=Precision(**asdict(plan.precision)),
    )
    gatherer = sharding_of(model).gatherer
    if gatherer is not None:
        gatherer.prefetch = plan.prefetch
    return model, optimizer


def run_step(
    plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, after_forward: Callable[[], None] | None = None
) -> None:
    """Run one step on a batch of the plan's shapes.

    Args:
        plan: The plan.
        model: What `shard_plan` returned.
        optimizer: The same.
        after_forward: Called between each forward and its backward.
    """
    for _ in range(plan.accumulation):
        inputs, targets = _batch(plan)
        loss = model(inputs, targets)
        if after_forward is not None:
            after_forward()
        loss.backward()
        del inputs, targets, loss
    optimizer.step()
    optimizer.zero_grad()


def _batch(plan: Plan) -> Batch:
    """Return inputs and targets of one micro-batch."""
    rows = plan.micro_batch
    if plan.model.family == "mlp":
        widths = plan.model.config["widths"]
        return torch.zeros(rows, widths[0]), torch.zeros(rows, widths[-1])
    return torch.zeros(rows, plan.seq, dtype=torch.int64), torch.zeros(rows, plan.seq, dtype=torch.int64)


class Saved(StorageBytes):
    """The storages that autograd keeps, parameters and buffers left out.

    Attributes:
        most_bytes: most of them at any `note`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 0

    def note(self) -> None:
        """Compare what is alive now with the most so far."""
        self.most_bytes = max(self.most_bytes, self.now_bytes)


@contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[Saved]:
    """Inside the block, count what forwards of a model keep for their backwards.

    Saved-tensor hooks see it, except the inputs of recomputed blocks, which their checkpoint keeps by itself.

    Args:
        model: Sharded or not; parameters and buffers do not count.
    """
    saved = Saved()
    handles = []

    weights = {tensor.untyped_storage()._cdata for tensor in _weights(model)}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            saved.add(tensor)
        return tensor

    def keep_input(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if torch._C._current_graph_task_id() == -1:
            saved.add(args[0])

    for module in model.modules():
        if isinstance(module, Decoder) and module.recompute == "full":
            handles += [block.register_forward_pre_hook(keep_input) for block in module.blocks]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield saved
    finally:
        for handle in handles:
            handle.remove()


def _weights(model: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers; where a stage frees parameters it also keeps them out of what autograd saves."""
    yield from model.buffers()
    if not is_sharded(model) or sharding_of(model).stage.keeps_full:
        yield from model.parameters()
