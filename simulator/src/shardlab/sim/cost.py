"""Seconds of an action on a machine. Rough: a few factors, each of them named.

    compute      flops / (peak x share that matrix products reach) + element-wise bytes / memory bandwidth
    collective   wire bytes / link bandwidth + hops x latency          ring, alpha-beta
    optimizer    bytes read and written / memory bandwidth

A ring over several nodes runs at the slower of the two links: all ranks of a node send through the ports of that node
together, so the bandwidth between nodes is that of a whole node.

Source: Thakur et al. 2005 (Optimization of collective communication operations), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.plan import Action, Figure, Machine, Op, Plan, calls, flops, step_bytes
from shardlab.plan.blocks import saved_bytes

TRAINING_FRACTION = Figure(
    0.8,
    "measured",
    "https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md",
    "share of the best matrix rate that a training step's products reach; fitted to published data-parallel runs",
)
LINK_FRACTION = Figure(0.8, "assumed", note="share of a link's rate that collectives reach")
ELEMENTWISE = Figure(
    4.0, "assumed", note="bytes that element-wise work reads and writes per byte saved, forward; twice that backward"
)
LAUNCH_S = Figure(1e-4, "assumed", note="launches and gaps per layer and pass")


@dataclass(frozen=True)
class Cost:
    """The cost model of a plan on a machine.

    Args:
        plan: The plan.
        machine: The machine.
        nodes: Nodes over which the ranks are spread evenly.
    """

    plan: Plan
    machine: Machine
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """Ranks on one node."""
        return -(-self.plan.mesh.size // self.nodes)

    @property
    def peak_flops_per_s(self) -> float | None:
        """Peak matrix rate of one rank in the compute dtype, or None where the device has none."""
        figure = self.machine.peak_flops_per_s.get(self.plan.precision.compute)
        return None if figure is None else figure.value / self.machine.share(self.ranks_per_node)

    @property
    def memory_bytes_per_s(self) -> float:
        """Memory bandwidth of one rank."""
        return self.machine.memory_bytes_per_s.value / self.machine.share(self.ranks_per_node)

    def seconds(self, action: Action) -> float:
        """Return the time of an action.

        Raises:
            ValueError: If the device has no units for the compute dtype.
        """
        if action.op in (Op.F, Op.B, Op.R):
            return self._compute(action)
        if action.op is Op.STEP:
            return step_bytes(self.plan) / self.memory_bytes_per_s
        return sum(self._collective(call.wire_bytes) for call in calls(action, self.plan))

    def _compute(self, action: Action) -> float:
        peak = self.peak_flops_per_s
        if peak is None:
            raise ValueError(f"{self.machine.title} has no units for {self.plan.precision.compute}")
        share = self.machine.matmul_fraction.value * (1.0 if self.machine.shared else TRAINING_FRACTION.value)
        products = flops(action, self.plan) / (peak * share)
        batch = replace(self.plan.batch, kernels="cpu" if self.machine.shared else "cuda")
        kept = saved_bytes(self.plan.model.layer(action.name), batch)
        passes = 2 if action.op is Op.B else 1
        launch = 0.0 if self.machine.shared else LAUNCH_S.value
        return products + passes * ELEMENTWISE.value * kept / self.memory_bytes_per_s + launch

    def _collective(self, wire_bytes: int) -> float:
        intra, inter, ranks = self.machine.intra_node, self.machine.inter_node, self.ranks_per_node
        rate = intra.bytes_per_s.value / self.machine.share(ranks)
        hops_s = (ranks - 1) * intra.latency_s.value
        if self.nodes > 1:
            rate = min(rate, inter.bytes_per_s.value)
            hops_s += (self.nodes - 1) * inter.latency_s.value
        return wire_bytes / (rate * LINK_FRACTION.value) + hops_s if self.plan.dp > 1 else 0.0
