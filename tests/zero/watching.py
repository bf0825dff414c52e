"""One training step with everything that it posted written down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab.comm import recording, run_ranks
from shardlab.comm.mesh import Mesh
from shardlab.zero import shard
from shardlab.zero.sharding import Sharding, sharding_of
from tests.oracle.recipe import Recipe

TINY = Recipe("gpt", steps=1)
FORWARD = ["tok.weight", "pos", "blocks.0", "blocks.1", "blocks.2", "norm"]
BACKWARD = FORWARD[::-1]


@dataclass
class Step:
    """What one rank posted, as (operation, unit), and what its tensors were in between."""

    forward: list[tuple[str, str]] = field(default_factory=list)
    backward: list[tuple[str, str]] = field(default_factory=list)
    step: list[tuple[str, str]] = field(default_factory=list)
    payload: dict[str, int] = field(default_factory=dict)  # bytes by operation
    seen: dict[str, Any] = field(default_factory=dict)


def watched(
    stage: int, axes: Mapping[str, int], look: Callable[[Sharding], Any], recipe: Recipe = TINY, passes: int = 2
) -> list[Step]:
    """The last of ``passes`` steps on each rank; ``look`` is asked after forward, backward and step."""

    def rank(mesh: Mesh) -> Step:
        model, optimizer = shard(recipe.build(), recipe.make_optimizer, mesh["dp"], stage=stage)
        sharding, step = sharding_of(model), Step()
        for number in range(passes):
            step = Step()
            with recording(mesh.recorder) as ledger:
                marks = []
                loss = recipe.loss(model, recipe.batch(number, 0, mesh.rank))
                marks.append(len(ledger))
                step.seen["forward"] = look(sharding)
                loss.backward()
                marks.append(len(ledger))
                step.seen["backward"] = look(sharding)
                optimizer.step()
                step.seen["step"] = look(sharding)
                optimizer.zero_grad()
            spans = list(ledger)
            for name, part in zip(
                ("forward", "backward", "step"),
                (spans[: marks[0]], spans[marks[0] : marks[1]], spans[marks[1] :]),
                strict=True,
            ):
                setattr(step, name, [(s.op, s.name) for s in part if s.op != "control"])
            for span in spans:
                step.payload[span.op] = step.payload.get(span.op, 0) + span.payload_bytes
        return step

    return run_ranks(axes, rank)
