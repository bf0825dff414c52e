"""Loans and the order of second rounds, with a backend that the test drives by hand."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from shardlab.comm.base import BaseCommunicator
from shardlab.comm.operation import Loan, Operation, Progress, flat
from shardlab.comm.record import Recorder


class Round:
    """A round that ends when the test says so."""

    def __init__(self, name: str, posted: list[tuple[int, int]]) -> None:
        self.name, self.posted, self.ended, self.error = name, posted, False, None  # type: ignore[var-annotated]

    def test(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.ended


class ByHand(BaseCommunicator):
    """Index 0 of two; keeps the rounds that it posts."""

    def __init__(self, progress: Progress, axis: str = "dp") -> None:
        super().__init__((0, 1), (axis,), 0, Recorder(0), progress)
        self.rounds: list[Round] = []

    def _post(self, name: str, posted: list[tuple[int, int]]) -> Round:
        assert self.posting is not None
        self.rounds.append(Round(f"{name} of {self.posting.kind} #{self.posting.number}", posted))
        return self.rounds[-1]

    def _exchange(self, arrive: list[Tensor], leave: list[Tensor]) -> Round:
        arrive[1].fill_(10)
        return self._post("exchange", [(i, x.nbytes) for i, x in enumerate(leave)])  # its own block included

    def _gather(self, parts: list[Tensor], second: bool) -> Round:
        return self._post("second" if second else "gather", [(1, parts[0].nbytes)])

    def _broadcast(self, x: Tensor, src_index: int) -> Round:
        return self._post("broadcast", [])

    def _barrier(self, name: str) -> Round:
        return self._post("barrier", [])

    def _send(self, x: Tensor, dst_index: int, tag: int) -> Round:
        return self._post("send", [(dst_index, x.nbytes)])

    def _recv(self, x: Tensor, src_index: int, tag: int) -> Round:
        return self._post("recv", [])

    def block_until_finished(self, op: Operation) -> None:
        for r in self._unended():
            r.ended = True
            if op.test():
                return
        assert op.test()

    def _unended(self) -> Iterator[Round]:
        while rest := [r for r in self.rounds if not r.ended]:
            yield rest[0]

    def names(self) -> list[str]:
        return [r.name for r in self.rounds]


# ---- loans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0),
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(12.0)[::2],
        torch.arange(12.0)[5::20],
        torch.tensor(3.0),
        torch.zeros(0, 3),
        torch.zeros(4, 2)[:0, 0],
    ],
    ids=lambda x: f"{tuple(x.shape)} strides {x.stride()}",
)
def test_flat_has_stride_one_and_the_elements_in_order(x: Tensor) -> None:
    line = flat(x)
    assert line.dim() == 1 and line.stride() == (1,) and line.tolist() == [v.item() for v in x.clone().reshape(-1)]
    assert (line.data_ptr() == x.data_ptr()) == x.is_contiguous() or not x.numel()


def test_a_loan_of_a_strided_output_is_written_back() -> None:
    out, inp = torch.zeros(6)[::2], torch.ones(3)
    loan = Loan.of(out, inp)
    loan.out.copy_(loan.inp)
    assert out.tolist() == [0, 0, 0]
    loan.give_back()
    assert out.tolist() == [1, 1, 1] and loan.payload_bytes == 12


def test_a_loan_of_contiguous_memory_is_that_memory() -> None:
    out = torch.zeros(2, 3, requires_grad=True)
    loan = Loan.of(out, None)
    assert loan.out.data_ptr() == out.data_ptr() and not loan.out.requires_grad and loan.inp.numel() == 0


# ---- rounds ----------------------------------------------------------------------------------------------------------


def test_second_rounds_are_posted_in_the_order_of_starts() -> None:
    c = ByHand(Progress())
    a, b = c.start_all_reduce(torch.zeros(4)), c.start_all_reduce(torch.zeros(4))
    first_a, first_b = c.rounds
    first_b.ended = True
    assert not b.done() and len(c.rounds) == 2  # b's turn has not come
    first_a.ended = True
    assert not b.done()
    assert c.names()[2:] == ["second of all_reduce #1", "second of all_reduce #2"]
    c.rounds[3].ended = True
    assert b.done() and not a.done()
    c.rounds[2].ended = True
    assert a.done()


def test_any_call_of_the_rank_posts_what_is_due_in_any_group() -> None:
    progress = Progress()
    c, other = ByHand(progress), ByHand(progress, "tp")
    c.start_all_reduce(torch.zeros(4))
    c.rounds[0].ended = True
    other.start_send(torch.zeros(1), 1)
    assert c.names()[1:] == ["second of all_reduce #1"]


def test_groups_do_not_wait_for_each_others_second_rounds() -> None:
    progress = Progress()
    c, other = ByHand(progress), ByHand(progress, "tp")
    c.start_all_reduce(torch.zeros(4))
    x = other.start_all_reduce(torch.zeros(4))
    other.rounds[0].ended = True
    assert not x.done() and other.names()[1:] == ["second of all_reduce #1"] and len(c.rounds) == 1


def test_a_round_that_failed_is_reported_once_and_does_not_block_the_queue() -> None:
    c = ByHand(Progress())
    a, b = c.start_all_reduce(torch.zeros(4)), c.start_all_reduce(torch.zeros(4))
    c.rounds[0].error = RuntimeError("lost")
    c.rounds[1].ended = True
    with pytest.raises(RuntimeError, match="lost"):
        b.done()
    assert not b.done() and c.names()[2:] == ["second of all_reduce #2"]
    assert not a.finished


def test_an_operation_counts_what_its_rounds_posted_to_others() -> None:
    c = ByHand(Progress())
    c.all_reduce(torch.zeros(5))  # pieces of 3 and 2: 2 elements leave, then 3
    assert c.recorder.wire_bytes == {"dp": 4 * (2 + 3)} and c.recorder.calls == {"all_reduce": 1}


def test_the_sum_is_of_both_contributions() -> None:
    c, x = ByHand(Progress()), torch.tensor([1.0, 2.0, 3.0])
    c.all_reduce(x)
    assert x.tolist() == [11, 12, 3]  # the other's half of the result never came


def test_collectives_and_messages_are_numbered_apart() -> None:
    c = ByHand(Progress())
    c.barrier("a")
    c.send(torch.zeros(1), 1)
    c.recv(torch.zeros(1), 1)
    c.barrier("b")
    c.send(torch.zeros(1), 1)
    assert c.names() == [
        "barrier of barrier #1", "send of send #1", "recv of recv #1", "barrier of barrier #2", "send of send #2",
    ]  # fmt: skip
    assert (c.entered, c.sent[1], c.received[1]) == (2, 2, 1)


def test_a_finished_operation_lets_go_of_its_buffers() -> None:
    c, x = ByHand(Progress()), torch.zeros(4)
    op = c.start_all_reduce(x)
    op.wait()
    assert op.finished and op._loan is None
    with pytest.raises(StopIteration):
        next(op._rounds)


def test_a_call_says_all_that_identifies_it() -> None:
    c = ByHand(Progress())
    with c.recorder.labelled(name="blocks.3"):
        op = c.start_send(torch.zeros(2, 3, dtype=torch.bfloat16), 1, tag=9)
    assert str(op) == "send #1 (6 bfloat16, tag 9) to rank 1 on group dp of ranks [0, 1] for 'blocks.3'"
    op.wait()
