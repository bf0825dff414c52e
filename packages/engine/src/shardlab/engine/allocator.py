"""How many bytes of tensors a piece of code had alive at once, from the allocator's own events.

torch's profiler notes every allocation and release of tensor memory on the CPU. Resident memory (VmHWM) says something
else: it has the interpreter, libraries and what malloc keeps, and is reported beside it where it helps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["AllocatorPeak", "allocator_peak", "resident_bytes"]


_RESTART = "shardlab: the peak is counted from here"


@dataclass
class AllocatorPeak:
    """What a block allocated; all zero until it has ended.

    Args:
        peak_bytes: most bytes alive at once beyond those alive when the block began.
        kept_bytes: bytes alive at its end beyond those alive when it began; negative if it released more.
    """

    peak_bytes: int = 0
    kept_bytes: int = 0

    def restart(self) -> None:
        """Count the peak from here on; what is alive now stays counted as alive.

        Releases of memory that was allocated before the block are not seen. A step before this call, inside the block,
        lets buffers that live from one step to the next be seen from their allocation on.
        """
        with record_function(_RESTART):
            pass


@contextmanager
def allocator_peak() -> Iterator[AllocatorPeak]:
    """Count the tensor bytes that the block allocates on the CPU.

    Yields:
        A value that is filled in when the block ends.

    Cost: the profiler slows the block by some ten per cent.
    """
    found = AllocatorPeak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        yield found
    events = watched.profiler.kineto_results.events()
    alive = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        if event.name() == _RESTART:
            found.peak_bytes = alive
        elif event.name() == "[memory]":
            alive += int(event.nbytes())
            found.peak_bytes = max(found.peak_bytes, alive)
    found.kept_bytes = alive


def resident_bytes() -> int:
    """Resident memory of this process in bytes, now; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    import resource

    return pages * resource.getpagesize()
