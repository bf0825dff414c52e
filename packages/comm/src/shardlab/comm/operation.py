"""One collective or message under way: a generator of message rounds, and the buffers lent to it.

An operation yields a Request for each round and resumes when that round has ended on this rank:

    all_reduce       exchange parts -> combine in rank order -> gather the parts      two rounds
    reduce_scatter   exchange parts -> combine in rank order                          one round
    all others                                                                        one round

Two rounds need an order. Within a group the second rounds are posted first in, first out, in the order of the starts,
by whichever wait(), done() or start_ runs next on this rank. Were they posted inside wait(), two ranks that wait in
different orders would mix tensors without a word.
"""

import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shardlab.comm.base import BaseCommunicator

__all__ = ["Loan", "Operation", "Progress", "Request", "Rounds", "flat"]


class Request(Protocol):
    """A message round that the backend has posted."""

    @property
    def posted(self) -> list[tuple[int, int]]:
        """(index of the receiver, bytes) of each message that this rank posts to others in the round."""

    def test(self) -> bool:
        """True once the round has ended on this rank; never blocks."""


Rounds = Generator[Request, None, None]


@dataclass
class Loan:
    """Flat contiguous stand-ins for the caller's buffers, and how to give them back."""

    out: Tensor
    inp: Tensor
    payload_bytes: int
    give_back: Callable[[], None]

    @staticmethod
    def of(out: Tensor | None, inp: Tensor | None) -> "Loan":
        """Lend views where the buffers are contiguous, copies where they are not."""
        flat_out, flat_inp = _lent(out), _lent(inp)
        copied = out is not None and not out.is_contiguous()

        def give_back() -> None:
            if copied and out is not None:
                out.detach().copy_(flat_out.view(out.shape))

        return Loan(flat_out, flat_inp, max(_nbytes(out), _nbytes(inp)), give_back)


def flat(x: Tensor) -> Tensor:
    """Elements of ``x`` in one dimension of stride 1: a view where it is contiguous, else a copy."""
    line = x.detach().contiguous().reshape(-1)  # reshape alone leaves a strided 1-D tensor as it is
    return line if line.stride(0) == 1 else line.as_strided(line.shape, (1,))  # one element is contiguous at any stride


def _lent(x: Tensor | None) -> Tensor:
    return torch.empty(0) if x is None else flat(x)


def _nbytes(x: Tensor | None) -> int:
    return 0 if x is None else x.numel() * x.element_size()


class Progress:
    """The operations of one rank, over all its groups, that still have a second round to post."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Operation]] = {}

    def enter(self, op: "Operation") -> None:
        """Queue a started operation of two rounds behind those of its group."""
        self._queues.setdefault(id(op.comm), deque()).append(op)

    def run(self) -> None:
        """Post every second round whose turn it is and whose first round has ended."""
        for key, queue in list(self._queues.items()):
            while queue:
                try:
                    if not queue[0].post_second():
                        break
                except BaseException:
                    queue.popleft()  # it has failed, once is enough
                    raise
                queue.popleft()
            if not queue:
                del self._queues[key]


class Operation:
    """The Pending of every backend, and what an error message says of a call.

    Attributes:
        kind: as in Span.op, such as "all_gather".
        number: how many collectives the group has entered with this one; for a message, how many to or from that peer.
        peer: index of the other side for send and recv, else None.
        detail: what must agree over the group: sizes, dtype, source, name.
    """

    def __init__(
        self, comm: "BaseCommunicator", kind: str, rounds: Rounds, loan: Loan, detail: str, peer: int | None
    ) -> None:
        self.comm, self.kind, self.detail, self.peer = comm, kind, detail, peer
        self.number = 0
        self.finished = False
        self.wire_bytes = 0
        self.label = comm.recorder.label
        self.start_s = time.perf_counter()
        self._rounds = rounds
        self._loan: Loan | None = loan
        self._request: Request | None = None
        self._in_first_of_two = kind == "all_reduce"

    def post(self) -> None:
        """Post the first round; called once, by start_."""
        self._next()
        if self._in_first_of_two and not self.finished:
            self.comm.progress.enter(self)

    def _next(self) -> None:
        """Resume the generator: it posts the next round or ends."""
        self.comm.posting = self
        try:
            self._request = next(self._rounds)
        except StopIteration:
            self._end()
        else:
            me = self.comm.index
            self.wire_bytes += sum(size for index, size in self._request.posted if index != me)
        finally:
            self.comm.posting = None

    def _end(self) -> None:
        self.finished, self._request = True, None
        loan, self._loan = self._loan, None  # a finished operation that lives on must not keep the buffers alive
        assert loan is not None
        loan.give_back()
        axis = "+".join(self.comm.axes)
        self.comm.recorder.add(self.kind, axis, self.label, loan.payload_bytes, self.wire_bytes, start_s=self.start_s)

    def post_second(self) -> bool:
        """Post the second round if the first has ended; True when posted."""
        if self._in_first_of_two and self._request is not None and self._request.test():
            self._in_first_of_two = False
            self._next()
        return not self._in_first_of_two

    def test(self) -> bool:
        """Advance as far as is possible without blocking; True when finished."""
        self.comm.progress.run()
        while not self.finished:
            if self._in_first_of_two or self._request is None or not self._request.test():
                return False
            self._next()
        return True

    def wait(self) -> None:
        """Block until finished; raises what went wrong."""
        if not self.finished:
            self.comm.block_until_finished(self)

    def done(self) -> bool:
        """True once ``wait`` would not block."""
        return self.test()

    def __str__(self) -> str:
        name = f" for {self.label.name!r}" if self.label.name else ""
        peer = ""
        if self.peer is not None:
            peer = f" {'to' if self.kind == 'send' else 'from'} rank {self.comm.ranks[self.peer]}"
        return f"{self.kind} #{self.number} ({self.detail}){peer} on {self.comm}{name}"
