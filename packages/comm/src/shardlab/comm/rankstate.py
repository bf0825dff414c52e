"""Process-wide state that each lockstep rank has to itself, thread-wide state that it takes from its caller.

    per rank, swapped at a hand-over      random state of torch (CPU), numpy and Python; default dtype; warnings filters
    copied from the caller at the start   grad mode, inference mode, autocast, default device, FakeTensorMode

CUDA's random state and torch's deterministic and matmul switches stay process-wide.
"""

import functools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import memmove, string_at
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

__all__ = ["GlobalState", "NumpyState", "ThreadState"]

_MT19937_BYTES = 624 * 4 + 4  # key words and position


def _numpy_rand() -> Any:
    """The RandomState behind numpy.random's functions, or None while nobody has imported numpy."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.mtrand._rand


def _raw(rand: Any) -> bytes | None:
    """Memory of the generator, or None where it is not an MT19937."""
    generator = rand._bit_generator
    return string_at(generator.ctypes.state_address, _MT19937_BYTES) if type(generator).__name__ == "MT19937" else None


@functools.cache
def _layout_is_known() -> bool:
    """True if the memory of numpy's generator is its key words followed by its position."""
    rand = _numpy_rand()
    raw, state = _raw(rand), rand._bit_generator.state["state"]
    if raw is None:
        return False
    return bool(raw == state["key"].astype("uint32").tobytes() + int(state["pos"]).to_bytes(4, sys.byteorder))


@dataclass
class NumpyState:
    """State of numpy's global generator.

    numpy's own get_state and set_state take 30 microseconds each, more than all else in a hand-over. So they are called
    only if a rank has drawn; otherwise the generator's memory is compared and copied.

    Attributes:
        full: what RandomState.get_state returned.
        raw: memory of the generator at that moment; None if it cannot be used.
    """

    full: dict[str, Any]
    raw: bytes | None

    @staticmethod
    def capture(before: "NumpyState | None") -> "NumpyState | None":
        """State now; ``before``, which was installed last, if nothing was drawn since."""
        rand = _numpy_rand()
        if rand is None:
            return None
        raw = _raw(rand) if _layout_is_known() else None
        if before is not None and before.plain and before.raw == raw:
            return before
        return NumpyState(rand.get_state(legacy=False), raw)

    @property
    def plain(self) -> bool:
        """True if ``raw`` is the whole state: no second half of a pair of normal numbers is kept aside."""
        return self.raw is not None and not self.full["has_gauss"]

    def install(self, over: "NumpyState | None") -> None:
        """Make this the state of the generator, whose state is ``over`` now."""
        rand = _numpy_rand()
        if self.plain and over is not None and over.plain:
            memmove(rand._bit_generator.ctypes.state_address, self.raw, _MT19937_BYTES)  # type: ignore[arg-type]
        else:
            rand.set_state(self.full)


@dataclass
class GlobalState:
    """The process-wide state of one rank while it does not run."""

    torch_rng: Tensor
    python_rng: tuple[Any, ...]
    numpy_rng: NumpyState | None
    dtype: torch.dtype
    filters: list[Any]
    show: tuple[Callable[..., None], Callable[..., None]]

    @staticmethod
    def capture(before: "GlobalState | None" = None) -> "GlobalState":
        """Return the state now; ``before`` is what was installed last, which saves work."""
        with torch._C._DisableTorchDispatch():  # a fake-tensor mode would hand out a fake state
            torch_rng = torch.default_generator.get_state()
        return GlobalState(
            torch_rng,
            random.getstate(),
            NumpyState.capture(before.numpy_rng if before else None),
            torch.get_default_dtype(),
            warnings.filters,  # type: ignore[arg-type]
            (warnings.showwarning, warnings._showwarnmsg_impl),  # type: ignore[attr-defined]
        )

    def install(self, over: "GlobalState") -> None:
        """Make this the state of the process, which is ``over`` now."""
        with torch._C._DisableTorchDispatch():
            torch.default_generator.set_state(self.torch_rng)
        random.setstate(self.python_rng)
        if self.numpy_rng is not None:
            self.numpy_rng.install(over.numpy_rng)
        if self.dtype is not over.dtype:
            torch.set_default_dtype(self.dtype)
        self._install_warnings(over)

    def _install_warnings(self, over: "GlobalState") -> None:
        warnings.filters = self.filters
        warnings.showwarning, warnings._showwarnmsg_impl = self.show  # type: ignore[attr-defined]
        if self.filters != over.filters:  # else the registries of warnings already shown stay valid
            warnings._filters_mutated()  # type: ignore[attr-defined]

    @staticmethod
    def seed(seed: int) -> None:
        """Seed all three generators, and go on with a copy of the warnings filters."""
        with torch._C._DisableTorchDispatch():
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        rand = _numpy_rand()
        if rand is not None:
            rand.seed(seed % 2**32)
        warnings.filters = list(warnings.filters)


class ThreadState:
    """Thread-wide state of the caller of ``run_ranks``, to be entered by the thread of each rank."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.device = torch.get_default_device()
        self.modes = list(_get_current_dispatch_mode_stack())
        self.cache = torch.is_autocast_cache_enabled()
        self.autocast = {
            kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Take the state over; backward passes run on this thread, not on one that all ranks share."""
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            for mode in self.modes:
                stack.enter_context(mode)
            if self.device != torch.device("cpu"):
                stack.enter_context(self.device)
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cache))
            if self.inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield
