"""Replay a program on two lanes, compute and link: the bubble of exposed communication is a result, not an input.

An action starts when its lane is free, all it needs has ended, and the compute before it in program order has ended:
the host issues a prefetch when it comes to it, not earlier. Gathers and reductions share the link, so they share one
lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.plan import Action, Ledger, Op, Program, Span, calls, lane_of
from shardlab.sim.cost import Cost


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step.

    Args:
        step: From first action to last.
        compute: Forward, backward and recompute.
        optimizer: The optimizer's own work.
        exposed: What is left: compute waits for communication.
    """

    step: float
    compute: float
    optimizer: float

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed."""
        return max(self.step - self.compute - self.optimizer, 0.0)


def replay(program: Program, cost: Cost) -> Ledger:
    """Return the predicted spans of rank 0, in program order.

    Args:
        program: The program of one step.
        cost: Seconds of its actions.
    """
    ends: dict[Action, float] = {}
    free = {"compute": 0.0, "link": 0.0}
    ledger, reached = Ledger(), 0.0
    for action in program:
        lane = "compute" if lane_of(action.op) == "compute" else "link"
        ready = max((ends[need] for need in program.needs(action)), default=0.0)
        start = max(ready, free[lane], reached)
        end = start + cost.seconds(action)
        ends[action] = free[lane] = end
        if lane == "compute":
            reached = end
        ledger.extend(_spans(action, cost, start, end))
    return ledger


def _spans(action: Action, cost: Cost, start_s: float, end_s: float) -> list[Span]:
    made = calls(action, cost.plan)
    if not made:
        return [Span(0, 0, action.micro_batch, action.op.value, action.name, "", 0, 0, start_s, end_s)]
    each, found = (end_s - start_s) / len(made), []
    for call in made:
        sizes = (call.payload_bytes, call.wire_bytes)
        found.append(Span(0, 0, action.micro_batch, call.op, call.name, call.axis, *sizes, start_s, start_s + each))
        start_s += each
    return found


def times(ledger: Ledger) -> Times:
    """Sum a predicted ledger up."""
    spent = {name: sum(s.end_s - s.start_s for s in ledger if s.op == name) for name in ("F", "B", "R", Op.STEP.value)}
    step = max((span.end_s for span in ledger), default=0.0)
    return Times(step, spent["F"] + spent["B"] + spent["R"], spent[Op.STEP.value])
