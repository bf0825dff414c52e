"""All that zero keeps for one sharded model, and how to find it again."""

from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.comm.communicator import Communicator
from shardlab.zero.gather import Gatherer
from shardlab.zero.hooks import Hooks
from shardlab.zero.pool import BufferPool
from shardlab.zero.reduce import Reducer
from shardlab.zero.stage0 import Stage0
from shardlab.zero.step import StepHooks
from shardlab.zero.unit import FlatGroup, Member, Unit
from shardlab.zero.visible import VisibleGrads

__all__ = ["Sharding", "sharding_of"]

_ATTRIBUTE = "shardlab_sharding"


@dataclass(eq=False)
class Sharding:
    """The parts of one sharded model; ``gatherer`` only at stage 3."""

    model: nn.Module
    optimizer: Optimizer
    comm: Communicator
    replicas: Communicator | None
    stage: Stage0
    units: list[Unit]
    pool: BufferPool
    reducer: Reducer
    gatherer: Gatherer | None
    visible: VisibleGrads
    hooks: Hooks
    step: StepHooks
    reading: list[dict[Member, Tensor]] = field(default_factory=list)  # of each `gathered` block: digests at its start

    def attach(self) -> None:
        """Make the model and the optimizer lead here."""
        self.model.__dict__[_ATTRIBUTE] = self
        self.optimizer.__dict__[_ATTRIBUTE] = self

    @property
    def trained_groups(self) -> list[FlatGroup]:
        """All flat groups that have gradients, in registration order."""
        return [group for unit in self.units for group in unit.trained]

    def find(self, name: str) -> tuple[Unit, FlatGroup, Member]:
        """Where the parameter ``name`` is.

        Raises:
            KeyError: the model has none of this name; lists the nearest.
        """
        for unit in self.units:
            for group in unit.groups:
                if name in group.by_name:
                    return unit, group, group.by_name[name]
        import difflib

        known = [name for unit in self.units for group in unit.groups for name in group.by_name]
        near = difflib.get_close_matches(name, known, 3, 0.0)
        raise KeyError(f"the model has no parameter {name!r}; nearest are {', '.join(map(repr, near))}")


def is_sharded(model: nn.Module) -> bool:
    """Whether ``shard`` was called on this very module."""
    return _ATTRIBUTE in model.__dict__


def sharding_of(owner: nn.Module | Optimizer) -> Sharding:
    """What ``shard`` attached to a model or an optimizer.

    Raises:
        ValueError: it was never sharded.
    """
    found = owner.__dict__.get(_ATTRIBUTE)
    if not isinstance(found, Sharding):
        raise ValueError(f"this {type(owner).__name__} was not sharded: pass what shardlab.zero.shard returned")
    return found
