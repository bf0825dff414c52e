"""Who can still be waited for: the logic alone, over what ranks have told each other.

The verdict on deadlock holds for old notices too. Take the largest set of waits each of which needs an operation
that another member of the set (or a leaver) had not entered when it posted. For the first of these waits to end, that
other member must have gone on before; so none has ended. A slow rank is in no such set and is never taken for dead.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Key", "Need", "Notice", "counterparts", "deadlocked", "describe", "lacks", "unmatched"]

Key = tuple[Hashable, ...]


class Need(NamedTuple):
    """An operation of another rank without which a wait cannot end.

    Attributes:
        rank: whose operation, in the world.
        key: which of its counts.
        least: what the count must reach.
    """

    rank: int
    key: Key
    least: int


@dataclass(frozen=True)
class Notice:
    """What one rank tells the others.

    Attributes:
        rank: who, in the world.
        counts: operations entered so far, by key.
        waits_for: what the rank waits for; "" when it has left.
        needs: of that wait.
    """

    rank: int
    counts: Mapping[Key, int]
    waits_for: str = ""
    needs: tuple[Need, ...] = ()

    @property
    def left(self) -> bool:
        """True if the rank has ended."""
        return not self.waits_for


def deadlocked(notices: Mapping[int, Notice]) -> dict[int, Notice]:
    """The waits that can never end, by rank: those that need what one of them, or a leaver, had not entered."""
    stuck = dict(notices)

    def hopeless(notice: Notice) -> bool:
        return any(need.rank in stuck and lacks(stuck[need.rank], need) for need in notice.needs)

    while alive := [rank for rank, notice in stuck.items() if not notice.left and not hopeless(notice)]:
        for rank in alive:
            del stuck[rank]
    return {rank: notice for rank, notice in stuck.items() if not notice.left}


def lacks(notice: Notice, need: Need) -> bool:
    """True if the rank had entered fewer operations than are needed."""
    return notice.counts.get(need.key, 0) < need.least


def unmatched(notices: Mapping[int, Notice]) -> list[str]:
    """Operations that not all ranks took part in, once all have left: one line each."""
    lines = []
    for rank, notice in notices.items():
        for key, count in notice.counts.items():
            for peer, counterpart in counterparts(rank, key):
                theirs = notices[peer].counts.get(counterpart, 0)
                if theirs < count:
                    lines.append(f"rank {rank} {describe(key, count)}, rank {peer} {describe(counterpart, theirs)}")
    return lines


def counterparts(rank: int, key: Key) -> list[tuple[int, Key]]:
    """Counts of other ranks that must equal this one in the end."""
    match key:
        case ("entered" | "connected", tuple() as ranks, *_):
            return [(int(peer), key) for peer in ranks if peer != rank]
        case ("sent", sender, receiver, *rest):
            return [(int(str(receiver)), ("received", sender, receiver, *rest))]
        case ("received", sender, receiver, *rest):
            return [(int(str(sender)), ("sent", sender, receiver, *rest))]
    return []


def describe(key: Key, count: int) -> str:
    """A count in words."""
    members = list(key[1]) if isinstance(key[1], tuple) else key[1]
    match key:
        case ("sent" | "received" as verb, sender, receiver, axes, _, tag):
            return f"{verb} {count} messages from rank {sender} to rank {receiver} with tag {tag} on group {axes}"
        case ("connected", *_):
            return f"connected {count} groups of ranks {members}"
        case (_, _, axes, *_):
            return f"entered {count} collectives on group {axes} of ranks {members}"
    return f"{key}: {count}"
