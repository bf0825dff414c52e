"""The scheduler alone: turns, waits and wakes, without communicators."""

import pytest

from shardlab.comm.errors import DeadlockError
from shardlab.comm.scheduler import Scheduler, Unwind


def test_ready_ranks_take_turns_first_in_first_out() -> None:
    scheduler, log = Scheduler(3, timeout_s=10, seed=0), []

    def body(rank: int) -> None:
        for turn in range(3):
            log.append((turn, rank))
            scheduler.offer(rank)

    scheduler.run(body)
    assert log == [(turn, rank) for turn in range(3) for rank in range(3)]


def test_a_waiting_rank_runs_again_only_after_a_wake() -> None:
    scheduler, log = Scheduler(3, timeout_s=10, seed=0), []

    def body(rank: int) -> None:
        log.append(f"{rank} begins")
        if rank == 0:
            scheduler.wait(0, "a wake")
        elif rank == 2:
            for _ in range(3):
                scheduler.offer(2)
            log.append("2 wakes 0")
            scheduler.wake(0)
            scheduler.wake(0)  # once is enough, twice is harmless
            scheduler.wake(1)  # has ended
        log.append(f"{rank} ends")

    scheduler.run(body)
    assert log == ["0 begins", "1 begins", "1 ends", "2 begins", "2 wakes 0", "2 ends", "0 ends"]


def test_nobody_ready_is_a_deadlock_for_all_who_wait() -> None:
    scheduler, caught = Scheduler(3, timeout_s=10, seed=0), []

    def body(rank: int) -> None:
        if rank == 1:
            return
        with pytest.raises(DeadlockError, match="no rank can go on") as error:
            scheduler.wait(rank, f"thing {rank}")
        caught.append((rank, str(error.value)))

    scheduler.run(body)
    assert [rank for rank, _ in caught] == [0, 2] and caught[0][1] == caught[1][1]
    assert "rank 0 waits for thing 0 at " in caught[0][1] and "rank 1 has returned" in caught[0][1]


def test_a_diagnosis_replaces_the_deadlock_of_the_ranks_it_knows() -> None:
    scheduler, caught = Scheduler(2, timeout_s=10, seed=0), []
    scheduler.diagnose = lambda text: {1: ValueError(f"better than: {text[:6]}")}

    def body(rank: int) -> None:
        try:
            scheduler.wait(rank, "x")
        except Exception as error:
            caught.append((rank, type(error), str(error)[:19]))

    scheduler.run(body)
    assert caught == [(0, DeadlockError, "no rank can go on: "), (1, ValueError, "better than: rank 0")]


def test_after_a_failure_every_call_of_the_others_unwinds() -> None:
    scheduler, log = Scheduler(2, timeout_s=10, seed=0), []

    def body(rank: int) -> None:
        if rank == 1:
            raise ValueError("first")
        try:
            scheduler.wait(0, "x")
        except Unwind:
            log.append("unwound")
            try:
                scheduler.offer(0)
            except Unwind:
                log.append("again")
            raise ValueError("a later one is not reported") from None

    with pytest.raises(ValueError, match="first"):
        scheduler.run(body)
    assert log == ["unwound", "again"]


def test_results_are_in_rank_order() -> None:
    assert Scheduler(5, timeout_s=10, seed=0).run(lambda rank: rank * rank) == [0, 1, 4, 9, 16]
