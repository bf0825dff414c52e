"""One thing to be done in a step: an operation, a pipeline stage, a micro-batch. No time, no tensor, no result.

The text is that of PyTorch's pipelining (`2F0`, `1UNSHARD`), which reads and writes it too. ZeRO needs more: the unit
or layer, after `@`, and which time in the micro-batch the unit is gathered or freed, after `#`, if not the first:

    0F0@blocks.3      forward of layer blocks.3, micro-batch 0
    0UNSHARD0@embed.tok.weight#1      second gather of a tied unit in that micro-batch
    0STEP      optimizer step
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Op(enum.Enum):
    """What is done; the value is the text."""

    F = "F"
    """Forward."""
    B = "B"
    """Backward: gradients of input and weights."""
    I = "I"  # noqa: E741
    """Backward: gradient of the input alone."""
    W = "W"
    """Backward: gradients of the weights alone."""
    R = "R"
    """Forward again, in backward, of a layer that kept only its input."""
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    GATHER = "UNSHARD"
    """All-gather a unit."""
    FREE = "RESHARD"
    """Return a gathered unit's buffer."""
    REDUCE = "REDUCE_GRAD"
    """Reduce-scatter a unit's gradients."""
    ALLREDUCE = "ALL_REDUCE_GRAD"
    """All-reduce a unit's gradients."""
    STEP = "STEP"
    """Optimizer step."""


_LANES = {
    Op.GATHER: "gather",
    Op.REDUCE: "reduce",
    Op.ALLREDUCE: "reduce",
    Op.SEND_F: "peer",
    Op.RECV_F: "peer",
    Op.SEND_B: "peer",
    Op.RECV_B: "peer",
}


def lane_of(op: Op) -> str:
    """Return the lane an operation occupies: compute, gather, reduce or peer."""
    return _LANES.get(op, "compute")


_OPS = "|".join(sorted((op.value for op in Op), key=len, reverse=True))
_TEXT = re.compile(rf"(\d+)({_OPS})(\d*)(?:@([^@#\s]+))?(?:#(\d+))?")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to be done.

    Args:
        op: What.
        stage: Pipeline stage.
        micro_batch: Micro-batch, or None where it belongs to the step as a whole.
        name: Layer for compute, unit for gather, free and reduce, or ''.
        visit: How many times the same was done before in this micro-batch.
    """

    op: Op
    stage: int
    micro_batch: int | None = None
    name: str = ""
    visit: int = 0

    def __str__(self) -> str:
        micro_batch = "" if self.micro_batch is None else self.micro_batch
        name = f"@{self.name}" if self.name else ""
        return f"{self.stage}{self.op.value}{micro_batch}{name}{f'#{self.visit}' if self.visit else ''}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read the text form.

        Raises:
            ValueError: If it is not one.
        """
        found = _TEXT.fullmatch(text.strip())
        if not found:
            raise ValueError(f"action {text!r}: want <stage><op><micro-batch>[@name][#visit], such as '2F0'")
        stage, op, micro_batch, name, visit = found.groups()
        return cls(Op(op), int(stage), int(micro_batch) if micro_batch else None, name or "", int(visit or 0))
