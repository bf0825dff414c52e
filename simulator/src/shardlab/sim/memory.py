"""Memory of the worst rank: states by their formula, activations and buffers by the fold over the program."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.plan import CATEGORIES, Figure, Holding, Plan, compile_plan, footprint, holdings, itemsize, state_bytes

RESERVED = Figure(
    1.04,
    "measured",
    "https://github.com/MooreThreads/SimuMax/blob/main/docs/b200/b200_release_v1.2_summary.json",
    "what the caching allocator reserves over what is allocated: median of 96 ranks on B200, 1.01 to 1.09",
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its peak.

    Args:
        by_category: Bytes by category; they sum to `allocated`.
        reserved: What the allocator takes from the device.
        capacity: What the device has.
        at: The action at the peak as text, or '' where only states are known.
        holdings: What is held between steps, item by item.
        saved: Most bytes of saved activations, temporaries left out.
    """

    by_category: dict[str, int]
    reserved: int
    capacity: int
    at: str
    holdings: tuple[Holding, ...]
    saved: int

    @property
    def allocated(self) -> int:
        """Bytes at the peak."""
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        """Whether what is reserved is within the capacity."""
        return self.reserved <= self.capacity


def memory(plan: Plan, capacity_bytes: int, on_host: bool) -> Memory:
    """Predict the peak of rank 0, whose shards are the fullest.

    Args:
        plan: The plan.
        capacity_bytes: Memory that one rank may use.
        on_host: Whether the device is the host: CPU kernels, and no caching allocator that reserves more than is used.
    """
    held = holdings(plan)
    if plan.model.states_only:
        found = {**dict.fromkeys(CATEGORIES, 0), **state_bytes(plan), "gathered": _largest_layer_bytes(plan)}
        at, saved = "", 0
    else:
        once = replace(plan, accumulation=1)  # every micro-batch repeats the first one's peak
        peak = footprint(compile_plan(once).actions, once, kernels="cpu" if on_host else "cuda")
        found, at, saved = peak.by_category, str(peak.at), peak.saved_bytes
    allocated = sum(found.values())
    reserved = allocated if on_host else int(allocated * RESERVED.value)
    return Memory(found, reserved, capacity_bytes, at, held, saved)


def _largest_layer_bytes(plan: Plan) -> int:
    """Return the gathered bytes of a bare count at stage 3: its largest layer, twice if the next is fetched ahead."""
    largest = int(plan.model.config["largest_layer"]) if plan.zero == 3 else 0
    return largest * itemsize(plan.precision.compute) * (2 if plan.prefetch else 1)
