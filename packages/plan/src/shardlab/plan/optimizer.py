"""What an optimizer keeps per parameter.

Moments lie in the master dtype, one element per element of the parameter; some of PyTorch's optimizers also keep a
step counter of 4 bytes per parameter tensor.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """State of an elementwise optimizer.

    Args:
        name: Name in a plan or a config.
        moments: Tensors of the parameter's size.
        counters: Step counters (fp32 scalars) per parameter tensor.
        temporaries: Tensors of the size of one parameter that are alive together while PyTorch updates it.
    """

    name: str
    moments: int
    counters: int
    temporaries: int


OPTIMIZERS: Mapping[str, OptimizerSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            OptimizerSpec("adamw", 2, 1, 2),
            OptimizerSpec("adam", 2, 1, 2),
            OptimizerSpec("sgd", 0, 0, 0),
            OptimizerSpec("sgd-momentum", 1, 0, 0),
            OptimizerSpec("rmsprop", 1, 1, 1),
            OptimizerSpec("adagrad", 1, 1, 1),
        )
    }
)
"""Known optimizers by name."""


def optimizer_spec(name: str) -> OptimizerSpec:
    """Return the state of an optimizer by name.

    Raises:
        ValueError: If it is unknown; the message holds the nearest name.
    """
    if name.lower() not in OPTIMIZERS:
        near = difflib.get_close_matches(name.lower(), OPTIMIZERS, n=1, cutoff=0.3)
        raise ValueError(f"optimizer {name!r} is not known; nearest: {(near or ['adamw'])[0]!r}")
    return OPTIMIZERS[name.lower()]
