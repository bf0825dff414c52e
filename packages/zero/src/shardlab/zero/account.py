"""What a sharded model really holds, counted from its tensors.

The same quantities as `shardlab.plan.state`, from another source: there they are computed from a Layout, here the
storages of the tensors that exist are added up, each once. Tests hold one against the other, to the byte.

Not counted: the single element behind each freed parameter and each stand-in of a gradient, and buffers that the pool
keeps for the next unit (`pooled_bytes` tells those).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from shardlab.zero.sharding import Sharding, sharding_of
from shardlab.zero.unit import FlatGroup

__all__ = ["held_bytes", "pooled_bytes", "state_bytes"]

CATEGORIES = ("parameters", "gradients", "optimizer", "buffers")


@dataclass
class Counted:
    """One kind of state.

    Args:
        held_bytes: bytes of its storages on this rank.
        whole_bytes: bytes that its parameters would need unsharded and unpadded.
        shards: ranks that share it.
    """

    held_bytes: int = 0
    whole_bytes: int = 0
    shards: int = 1

    @property
    def share_bytes(self) -> int:
        """This rank's even share of the whole, rounded down."""
        return self.whole_bytes // self.shards


def held_bytes(model: nn.Module) -> dict[str, int]:
    """Bytes that this rank holds between steps, each category with its padding inside.

    Args:
        model: what ``shard`` returned; real or fake tensors.

    Returns:
        parameters, gradients, optimizer, buffers. Gradients appear from the first backward on, optimizer state from the
        first step on.
    """
    found = dict.fromkeys(CATEGORIES, 0)
    for (category, _), counted in _count(sharding_of(model)).items():
        found[category] += counted.held_bytes
    return found


def state_bytes(model: nn.Module) -> dict[str, int]:
    """The same bytes with padding apart: what is held beyond this rank's even share of the parameters.

    Args:
        model: what ``shard`` returned; real or fake tensors.

    Returns:
        parameters, gradients, optimizer, buffers, padding. They sum to what is held. Padding is negative on a rank
        whose shards are the emptier ones.
    """
    found = dict.fromkeys((*CATEGORIES, "padding"), 0)
    for (category, _), counted in _count(sharding_of(model)).items():
        found[category] += counted.share_bytes
        found["padding"] += counted.held_bytes - counted.share_bytes
    return found


def pooled_bytes(model: nn.Module) -> int:
    """Bytes of flat buffers that the pool keeps for the next borrower."""
    return sharding_of(model).pool.kept_bytes


def _count(sharding: Sharding) -> dict[tuple[str, str], Counted]:
    """Count every tensor that outlives a step, by category and kind; no storage twice."""
    found: dict[tuple[str, str], Counted] = {}
    seen: set[int] = set()
    for held in _tensors(sharding):
        counted = found.setdefault((held.category, held.kind), Counted())
        counted.whole_bytes += held.whole_numel * held.tensor.element_size()
        counted.shards = max(counted.shards, held.shards)
        storage = held.tensor.untyped_storage()
        if storage._cdata not in seen:
            counted.held_bytes += storage.nbytes()
        seen.add(storage._cdata)
    return found


@dataclass(frozen=True)
class Held:
    """One tensor that outlives a step.

    Args:
        whole_numel: elements that it adds to the unsharded whole.
        shards: ranks that share that whole.
    """

    category: str
    kind: str
    tensor: Tensor
    whole_numel: int
    shards: int = 1


def _tensors(sharding: Sharding) -> Iterator[Held]:
    for unit in sharding.units:
        for group in unit.groups:
            yield from _flat(group)
    yield from _optimizer_state(sharding)
    for buffer in sharding.model.buffers():
        yield Held("buffers", "buffers of modules", buffer, buffer.numel())


def _flat(group: FlatGroup) -> Iterator[Held]:
    """Yield the flat tensors of a group."""
    numel = sum(member.numel for member in group.members)

    def held(category: str, kind: str, tensor: Tensor) -> Held:
        return Held(category, kind, tensor, numel, group.layout.shards if tensor.numel() < group.layout.numel else 1)

    values = group.shard if group.full is None else group.full
    yield held("parameters", "trained" if group.trained else "frozen", values)
    if group.master is not None:
        yield held("optimizer", "master", group.master)
    if group.sending is not None:  # stage 1 keeps its whole local gradients, and beside them its part of the sum
        yield held("gradients", "local", group.sending)
    if group.acc is not None:
        yield held("gradients" if group.sending is None else "buffers", "sum", group.acc)


def _optimizer_state(sharding: Sharding) -> Iterator[Held]:
    """Yield what the optimizer keeps for its pieces; a state of the parameter's shape is shared as parameters are."""
    whole = sum(member.numel for group in sharding.trained_groups for member in group.members)
    seen: set[str] = set()
    for piece, state in sharding.optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == piece.shape and value.dim():
                yield Held("optimizer", key, value, 0 if key in seen else whole, sharding.stage.shards)
                seen.add(key)
            elif isinstance(value, Tensor):
                yield Held("optimizer", key, value, value.numel())
