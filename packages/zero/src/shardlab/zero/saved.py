"""What autograd saves of a unit's weights: their place, not their bytes.

Without this, the tensors that forward saves for backward would keep every gathered buffer alive until backward.

Somebody else's saved-tensor hooks may already be on the stack. Those of `torch.utils.checkpoint` keep no tensors and
count them: covering them up would switch checkpointing off without a word, so they are left alone. Others (offloading
hooks) go on seeing every tensor that is not part of a unit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shardlab.zero.gather import Gatherer, Packed

__all__ = ["SavedTensors"]

Pair = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class SavedTensors:
    """Pushes the pack and unpack hooks for the length of a module call, unless they are on top already.

    Args:
        gatherer: knows which storages belong to which unit.
        on_unpack: called before a tensor of a unit is unpacked; in a backward that reaches no module and no trained
            parameter it is the first to know.
    """

    def __init__(self, gatherer: Gatherer, on_unpack: Callable[[], None]) -> None:
        self.gatherer, self.on_unpack = gatherer, on_unpack
        self._pushed: list[Pair | None] = []  # one entry per nested call: what it pushed

    def enter(self) -> None:
        """A module call begins."""
        top: Pair | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
        checkpointing = top is not None and getattr(top[0], "__module__", "") == "torch.utils.checkpoint"
        ours = next((pair for pair in reversed(self._pushed) if pair is not None), None)
        if checkpointing or (top is not None and ours is not None and top[1] is ours[1]):
            self._pushed.append(None)
            return
        pair = self._composed(top)
        self._pushed.append(pair)
        torch._C._autograd._push_saved_tensors_default_hooks(*pair)

    def leave(self) -> None:
        """It ends, normally or not."""
        if self._pushed and self._pushed.pop() is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _unpack(self, kept: Packed | Tensor) -> Tensor:
        if isinstance(kept, Packed):
            self.on_unpack()
        return self.gatherer.unpack(kept)

    def _composed(self, top: Pair | None) -> Pair:
        """Hooks for the unit's tensors that pass all others on to ``top``."""
        pack, unpack = self.gatherer.pack, self._unpack
        if top is None:
            return pack, unpack
        their_pack, their_unpack = top

        def pack_on_top(x: Tensor) -> Any:
            kept = pack(x)
            return kept if isinstance(kept, Packed) else (their_pack(x),)

        def unpack_on_top(kept: Any) -> Tensor:
            return unpack(kept) if isinstance(kept, Packed) else their_unpack(kept[0])

        return pack_on_top, unpack_on_top
