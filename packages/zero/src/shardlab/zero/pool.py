"""Flat buffers that units borrow in turn.

A buffer that comes back is kept for the next borrower of the same size, since a fresh one costs page faults (six times
the copy, measured). Sizes that only one unit has are not kept: their bytes are worth more than the faults.

A buffer to which something still points, such as a tensor that somebody's own saved-tensor hooks hold, is never lent
again: it stays right for its holder and is collected after it.
"""

from collections import Counter, defaultdict

import torch
from torch import Tensor

__all__ = ["BufferPool"]

Key = tuple[torch.dtype, int]


class BufferPool:
    """Lends 1-D buffers by dtype and numel.

    Args:
        device: where buffers live.

    Attributes:
        lent_bytes: bytes lent now.
        peak_bytes: most bytes lent at once.
        lost: how many buffers came back while something still pointed to them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lent_bytes = self.peak_bytes = self.lost = 0
        self._borrowers: Counter[Key] = Counter()
        self._kept: dict[Key, list[Tensor]] = defaultdict(list)

    def register(self, dtype: torch.dtype, numel: int) -> None:
        """Announce one unit that borrows buffers of this size."""
        self._borrowers[dtype, numel] += 1

    def take(self, dtype: torch.dtype, numel: int) -> Tensor:
        """Borrow a buffer; its content is undefined."""
        kept = self._kept[dtype, numel]
        buffer = kept.pop() if kept else torch.empty(numel, dtype=dtype, device=self.device)
        self.lent_bytes += numel * dtype.itemsize
        self.peak_bytes = max(self.peak_bytes, self.lent_bytes)
        return buffer

    def give(self, buffer: Tensor) -> None:
        """Return a buffer; the caller keeps no other reference than the one passed."""
        key = (buffer.dtype, buffer.numel())
        self.lent_bytes -= buffer.numel() * buffer.element_size()
        if _pointers(buffer) > 1:
            self.lost += 1
        elif self._borrowers[key] > 1:
            self._kept[key].append(buffer)

    @property
    def kept_bytes(self) -> int:
        """Bytes held for the next borrower."""
        return sum(len(kept) * numel * dtype.itemsize for (dtype, numel), kept in self._kept.items())


def _pointers(buffer: Tensor) -> int:
    """How many tensors share the storage of ``buffer``, itself included."""
    storage = buffer.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1
