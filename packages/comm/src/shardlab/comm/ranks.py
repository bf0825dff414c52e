"""Run one function on several ranks inside this process."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shardlab.comm.lockstep import LockstepWorld, MeetingPoints, enter_world
from shardlab.comm.scheduler import Scheduler
from shardlab.plan.mesh import MeshShape

__all__ = ["run_ranks"]

R = TypeVar("R")


def run_ranks(
    axes: Mapping[str, int], fn: Callable[..., R], *args: Any, timeout_s: float = 60, seed: int = 0
) -> list[R]:
    """Call ``fn(mesh, *args)`` on every rank of a mesh, each rank a thread, one running at a time.

    Ranks change only inside communicator calls. Known limits: a lock that the program holds over such a call (of
    functools.cached_property on Python 3.11, of a logger) blocks the next rank that wants it, which ends in
    TimeoutError; random state of CUDA and process-wide switches of torch are shared, and so are modules, globals and
    arguments.

    Args:
        axes: size by axis name, such as ``{"dp": 4}``.
        fn: the program of one rank. Arguments are shared by all ranks, not copied.
        timeout_s: longest time in which no rank makes a call, resumes or ends; ``math.inf`` for a debugger.
        seed: rank r starts with torch, numpy and Python generators seeded with ``seed + r``.

    Returns:
        What ``fn`` returned, by rank.

    Raises:
        DeadlockError: no rank can go on; says what each waits for.
        TimeoutError: a rank ran too long; shows its stack.
        Exception: whatever the first rank to fail has raised, with a note that says which.
    """
    shape = MeshShape(axes)
    scheduler = Scheduler(shape.size, timeout_s, seed)
    points = MeetingPoints(scheduler)

    def body(rank: int) -> R:
        world = LockstepWorld(rank, shape.size, points, seed)
        enter_world(world)
        result = fn(world.mesh(shape), *args)
        world.close()
        return result

    return scheduler.run(body)
