"""Lockstep communicators: what they raise when ranks do not fit together, or touch what belongs to comm."""

import re
from collections.abc import Callable

import pytest
import torch

from shardlab.comm import BufferInFlightError, CommError, DeadlockError, DivergedError, Mesh, init, run_ranks
from shardlab.comm.lockstep import current_world
from shardlab.plan.mesh import MeshShape

HERE = __file__


def fails(kind: type[Exception], fn: Callable[[Mesh], object], size: int = 2) -> str:
    """Text of the error that ``fn`` ends with; any other end fails the test."""
    with pytest.raises(kind) as caught:
        run_ranks({"dp": size}, fn, timeout_s=10)
    return str(caught.value)


def line_of(marker: str) -> int:
    """Number of the line of this file that ends with a comment ``marker``."""
    with open(HERE) as source:
        return next(n for n, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}"))


def test_a_rank_that_returned_early_is_named_in_the_deadlock() -> None:
    def main(mesh: Mesh) -> None:
        if mesh.rank == 0:
            with mesh.recorder.labelled(name="blocks.0"):
                mesh["dp"].all_reduce(torch.zeros(3))  # waits alone

    text = fails(DeadlockError, main)
    at = f"{HERE}:{line_of('waits alone')}"
    assert "rank 0 waits for all_reduce #1 (sum of 3 float32) on group dp of ranks [0, 1] for 'blocks.0'" in text
    assert at in text and "rank 1 has returned" in text


def test_ranks_that_wait_for_each_other_deadlock() -> None:
    def main(mesh: Mesh) -> None:
        mesh["dp"].recv(torch.zeros(2), (mesh.rank + 1) % 3, tag=4)

    text = fails(DeadlockError, main, size=3)
    for rank in range(3):
        said = f"rank {rank} waits for recv #1 (2 float32, tag 4) from rank {(rank + 1) % 3}"
        assert said in text


def test_sends_need_their_receiver() -> None:
    """A send that a network would have buffered: both send first."""

    def main(mesh: Mesh) -> None:
        other = 1 - mesh.rank
        mesh["dp"].send(torch.zeros(1), other)
        mesh["dp"].recv(torch.zeros(1), other)

    assert "rank 1 waits for send #1" in fails(DeadlockError, main)


def test_every_rank_gets_the_deadlock_and_may_go_on() -> None:
    def main(mesh: Mesh) -> str:
        with pytest.raises(DeadlockError) as caught:
            mesh["dp"].recv(torch.zeros(1), 1 - mesh.rank)
        mesh["ep"].barrier("x")
        return str(caught.value)

    texts = run_ranks({"dp": 2}, main)
    assert texts[0] == texts[1]


def diverging(*calls: Callable[[Mesh], object]) -> list[str]:
    """Rank i makes call i; what each rank is told."""

    def main(mesh: Mesh) -> str:
        with pytest.raises(DivergedError) as caught:
            calls[mesh.rank](mesh)
        return str(caught.value)

    return run_ranks({"dp": len(calls)}, main)


def test_different_calls_raise_on_every_member_and_name_every_call() -> None:
    texts = diverging(
        lambda m: m["dp"].all_reduce(torch.zeros(3)),  # first
        lambda m: m["dp"].all_gather(torch.zeros(9), torch.zeros(3)),  # second
        lambda m: m["dp"].all_reduce(torch.zeros(3)),
    )
    assert len(set(texts)) == 1
    assert (
        f"rank 0: all_reduce #1 (sum of 3 float32) on group dp of ranks [0, 1, 2] at {HERE}:{line_of('first')}"
        in texts[0]
    )
    assert f"rank 1: all_gather #1 (3 float32) on group dp of ranks [0, 1, 2] at {HERE}:{line_of('second')}" in texts[0]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda c: c.all_reduce(torch.zeros(3)), lambda c: c.all_reduce(torch.zeros(4))),
        (lambda c: c.all_reduce(torch.zeros(3)), lambda c: c.all_reduce(torch.zeros(3).double())),
        (lambda c: c.broadcast(torch.zeros(3), 0), lambda c: c.broadcast(torch.zeros(3), 1)),
        (lambda c: c.barrier("one"), lambda c: c.barrier("two")),
        (lambda c: c.send(torch.zeros(3), 1), lambda c: c.recv(torch.zeros(4), 0)),
        (lambda c: c.send(torch.zeros(3), 1), lambda c: c.recv(torch.zeros(3, dtype=torch.int32), 0)),
        (
            lambda c: c.all_to_all(torch.zeros(3), torch.zeros(3), [1, 2], [1, 2]),
            lambda c: c.all_to_all(torch.zeros(3), torch.zeros(3), [1, 2], [1, 2]),
        ),
    ],
    ids=["numel", "dtype", "source", "name", "message numel", "message dtype", "splits"],
)
def test_calls_that_do_not_fit_diverge(one: Callable[..., object], two: Callable[..., object]) -> None:
    texts = diverging(lambda m: one(m["dp"]), lambda m: two(m["dp"]))
    assert texts[0] == texts[1] and texts[0].count(f" at {HERE}:") == 2


def test_a_divergence_that_ends_in_a_deadlock_is_called_a_divergence() -> None:
    """Rank 2 never comes; the calls of 0 and 1 already differ."""

    def main(mesh: Mesh) -> None:
        if mesh.rank == 0:
            mesh["dp"].barrier("one")
        elif mesh.rank == 1:
            mesh["dp"].barrier("two")

    assert "not there yet: ranks [2]" in fails(DivergedError, main, size=3)


# ---- buffers in flight -----------------------------------------------------------------------------------------------


def overwrites_input(mesh: Mesh) -> None:
    x, out = torch.ones(3), torch.zeros(6)
    p = mesh["dp"].start_all_gather(out, x)  # started input
    x[1] = 5
    p.wait()  # waited input


def overwrites_output(mesh: Mesh) -> None:
    x, out = torch.ones(3), torch.zeros(6)
    p = mesh["dp"].start_all_gather(out, x)  # started output
    out[4] = 5
    p.wait()  # waited output


def adds_to_a_sum_under_way(mesh: Mesh) -> None:
    x = torch.ones(3, dtype=torch.int64)
    p = mesh["dp"].start_all_reduce(x)  # started sum
    x += 1
    p.wait()  # waited sum


def polls_after_overwriting(mesh: Mesh) -> None:
    x, out = torch.ones(3), torch.zeros(6)
    p = mesh["dp"].start_all_gather(out, x)  # started poll
    x.zero_()
    while not p.done():  # waited poll
        pass


@pytest.mark.parametrize(
    ("fn", "buffer", "mark"),
    [
        (overwrites_input, "the input (3 float32)", "input"),
        (overwrites_output, "the output (6 float32)", "output"),
        (adds_to_a_sum_under_way, "the output (3 int64)", "sum"),
        (polls_after_overwriting, "the input (3 float32)", "poll"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_buffer_used_in_flight_is_an_error_with_both_lines(
    fn: Callable[[Mesh], None], buffer: str, mark: str, seed: int
) -> None:
    with pytest.raises(BufferInFlightError, match=re.escape(buffer)) as caught:
        run_ranks({"dp": 2}, fn, seed=seed)
    assert f"started at {HERE}:{line_of(f'started {mark}')} " in str(caught.value)
    assert f"wait at {HERE}:" in str(caught.value).replace("its ", "")
    assert f"{HERE}:{line_of(f'waited {mark}')};" in str(caught.value)


def test_the_output_is_poison_until_wait_and_no_longer() -> None:
    def main(mesh: Mesh) -> None:
        c = mesh["dp"]
        floats, ints, flags = (
            torch.zeros(2, 3),
            torch.zeros(2, 3, dtype=torch.int16),
            torch.zeros(2, 3, dtype=torch.bool),
        )
        pending = [
            c.start_all_gather(floats, torch.ones(3)),
            c.start_all_gather(ints, torch.ones(3, dtype=torch.int16)),
            c.start_all_gather(flags, torch.ones(3, dtype=torch.bool)),
        ]
        assert floats.isnan().all()
        assert (ints == 0x7F7F).all()
        assert (flags.view(torch.uint8) == 0x7F).all()
        c.barrier("all have started: real bytes could have arrived by now")
        assert floats.isnan().all()
        for p in pending:
            p.wait()
        for x in (floats, ints, flags):
            assert torch.equal(x, torch.ones_like(x))

    run_ranks({"dp": 2}, main)


def test_the_own_slice_of_a_gather_in_place_stays_readable() -> None:
    def main(mesh: Mesh) -> None:
        out = torch.full((2, 3), float(mesh.rank))
        p = mesh["dp"].start_all_gather(out, out[mesh.rank])
        assert (out[mesh.rank] == mesh.rank).all() and out[1 - mesh.rank].isnan().all()
        p.wait()
        assert out.tolist() == [[0.0] * 3, [1.0] * 3]

    run_ranks({"dp": 2}, main)


def test_bytes_move_early_or_late_as_the_seed_says() -> None:
    """Rank 0 changes its input and changes it back: seen by rank 1 only if the bytes moved in between."""

    def main(mesh: Mesh) -> float:
        c, x = mesh["dp"], torch.zeros(1)
        if mesh.rank == 1:
            c.recv(x, 0)
            return x.item()
        p = c.start_send(x, 1)
        x.fill_(1)
        mesh.world.offer()  # type: ignore[attr-defined]
        x.fill_(0)
        p.wait()
        return 0.0

    assert {run_ranks({"dp": 2}, main, seed=seed)[1] for seed in range(20)} == {0.0, 1.0}


def test_start_never_switches_and_done_does() -> None:
    log: list[str] = []

    def main(mesh: Mesh) -> None:
        c = mesh["dp"]
        log.append(f"{mesh.rank} starts")
        p = c.start_barrier("x")
        log.append(f"{mesh.rank} started")
        p.done()
        log.append(f"{mesh.rank} looked")
        p.wait()

    run_ranks({"dp": 2}, main)
    assert log[:4] == ["0 starts", "0 started", "1 starts", "1 started"]
    assert sorted(log[4:]) == ["0 looked", "1 looked"]


# ---- dropped ---------------------------------------------------------------------------------------------------------


def test_a_dropped_pending_is_an_error_with_its_line() -> None:
    def main(mesh: Mesh) -> None:
        mesh["dp"].start_broadcast(torch.zeros(3), 0)  # dropped
        mesh["dp"].barrier("x")
        mesh["dp"].barrier("y")
        raise AssertionError("the next calls should have raised")

    text = fails(CommError, main)
    assert "broadcast #1" in text and f"started at {HERE}:{line_of('dropped')}" in text


@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "kept"])
def test_a_rank_may_not_end_with_something_under_way(keep: bool) -> None:
    def main(mesh: Mesh) -> object:
        p = mesh["dp"].start_all_reduce(torch.zeros(3))  # never
        return p if keep else None

    text = fails(CommError, main)
    assert "all_reduce #1" in text and f"started at {HERE}:{line_of('never')}" in text


def test_done_counts_as_wait() -> None:
    def main(mesh: Mesh) -> bool:
        p = mesh["dp"].start_all_reduce(torch.zeros(3))
        while not p.done():
            pass
        return True

    assert run_ranks({"dp": 3}, main) == [True] * 3


# ---- the world -------------------------------------------------------------------------------------------------------


def test_current_world_is_that_of_the_rank() -> None:
    def main(mesh: Mesh) -> int:
        mesh["dp"].barrier("x")
        world = current_world()
        assert world is mesh.world
        return world.rank

    assert current_world() is None
    assert run_ranks({"dp": 3}, main) == [0, 1, 2]
    assert current_world() is None


def test_init_gives_the_mesh_of_the_rank_and_others_over_the_same_world() -> None:
    def main(mesh: Mesh) -> None:
        assert init() is mesh and init({"dp": 4}) is mesh
        other = init({"pp": 2, "dp": -1})
        assert other is init({"pp": 2, "dp": 2}) and other is not mesh and other.shape == MeshShape({"pp": 2, "dp": 2})
        x = torch.ones(1)
        other["dp"].all_reduce(x)
        mesh["dp"].all_reduce(x)
        assert x.item() == 8

    run_ranks({"dp": 4}, main)


def test_groups_of_two_meshes_over_the_same_ranks_are_apart() -> None:
    """The first calls of both are under way at once, in another order on each rank."""

    def main(mesh: Mesh) -> tuple[float, float]:
        groups = [mesh["dp"], init({"dp": 2, "tp": 1})["dp"]]
        values = [torch.tensor(1.0 + mesh.rank), torch.tensor(10.0 + mesh.rank)]
        order = (0, 1) if mesh.rank == 0 else (1, 0)
        for p in [groups[i].start_all_reduce(values[i]) for i in order]:
            p.wait()
        return values[0].item(), values[1].item()

    assert run_ranks({"dp": 2}, main) == [(3.0, 21.0)] * 2


def test_only_the_thread_of_a_rank_may_use_its_communicators() -> None:
    shared: dict[int, Mesh] = {}

    def main(mesh: Mesh) -> Mesh:
        shared[mesh.rank] = mesh
        mesh["dp"].barrier("x")
        with pytest.raises(CommError, match=rf"communicator of lockstep rank {1 - mesh.rank} was used"):
            shared[1 - mesh.rank]["dp"].barrier("y")
        return mesh

    meshes = run_ranks({"dp": 2}, main)
    with pytest.raises(CommError, match="while no rank runs"):
        meshes[0]["dp"].start_barrier("z")
