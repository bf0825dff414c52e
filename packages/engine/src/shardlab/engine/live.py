"""Bytes of the tensors that are alive, counted from outside: real or fake ones, with no word from whoever made them.

Every operation that PyTorch dispatches inside the block is looked at; a storage that appears in a result for the first
time is added, and taken off when it is collected.

Not seen: what a kernel allocates and returns to nobody (packed weights of a matrix product, tiles of an attention
kernel), the allocator's rounding and caching, and tensors made before the block.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes", "StorageBytes"]


class StorageBytes:
    """A set of storages that forgets those that are collected, and the sum of their bytes.

    Attributes:
        now_bytes: sum over the storages that are alive.
    """

    def __init__(self) -> None:
        self.now_bytes = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor: Tensor) -> None:
        """Add the storage of a tensor unless it is there."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now_bytes += storage.nbytes()
        weakref.finalize(storage, self._gone, key).atexit = False

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._sizes

    def _gone(self, key: int) -> None:
        self.now_bytes -= self._sizes.pop(key)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are made inside the block; enter it inside FakeTensorMode to count fake ones.

    Attributes:
        peak_bytes: most bytes alive at once since the last `restart`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages = StorageBytes()
        self.peak_bytes = 0

    @property
    def now_bytes(self) -> int:
        """Bytes alive now."""
        return self.storages.now_bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; True would import the compiler, 2 s, at the first operation."""
        return False

    def restart(self) -> None:
        """Forget the peak: it starts again from what is alive now."""
        self.peak_bytes = self.now_bytes

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and look at its results."""
        # Sharded gradients refuse to be touched, but not by what happens below users.
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func is torch.ops.prim.device.default:  # asked at every step of every operation
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.storages.add(leaf)
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        return result
