"""The dry world: counts what the real rounds post, moves nothing, and costs little at any size."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from shardlab.comm import MAX, Mesh, agree, dry_mesh, recording, run_ranks
from tests.comm.contract_counts import wire_program


def counted(mesh: Mesh) -> list[tuple[str, str, int, int]]:
    """Spans of one call of each kind, on each group of the mesh."""
    with recording(mesh.recorder) as ledger:
        for axis in mesh.shape.axes:
            wire_program(mesh[axis])
        wire_program(mesh[mesh.shape.axes])
        agree(mesh[mesh.shape.axes], "gather", "blocks.0", 7)
    return [(s.op, s.axis, s.payload_bytes, s.wire_bytes) for s in ledger]


@pytest.mark.parametrize("axes", [{"dp": 1}, {"dp": 2}, {"dp": 5}, {"pp": 2, "dp": 3}], ids=str)
@pytest.mark.parametrize("fake", [False, True], ids=["real tensors", "fake tensors"])
def test_counts_equal_those_of_lockstep_ranks(axes: dict[str, int], fake: bool) -> None:
    real = run_ranks(axes, counted)
    for rank, want in enumerate(real):
        mesh = dry_mesh(axes, rank)
        if fake:
            with FakeTensorMode():
                assert counted(mesh) == want
        else:
            assert counted(mesh) == want
        assert mesh.recorder.wire_bytes.total() > 0 or len(real) == 1


def test_counts_follow_the_formulas_in_a_large_group() -> None:
    size, me = 1024, 1000
    mesh = dry_mesh({"dp": size}, me)
    comm = mesh["dp"]
    with FakeTensorMode(), recording(mesh.recorder) as ledger:
        comm.all_gather(torch.empty(size * 3, dtype=torch.bfloat16), torch.empty(3, dtype=torch.bfloat16))
        comm.reduce_scatter(torch.empty(3), torch.empty(size * 3))
        comm.all_reduce(torch.empty(size + 5))  # the first five indices hold two elements, this one one
        comm.broadcast(torch.empty(4), 0)
        comm.broadcast(torch.empty(4), me)
    expected = [6 * 1023, 12 * 1023, 4 * (size + 4) + 4 * 1023, 0, 16 * 1023]
    assert [span.wire_bytes for span in ledger] == expected
    assert mesh.recorder.wire_bytes == {"dp": sum(expected)}


def test_start_forms_count_alike() -> None:
    mesh = dry_mesh({"dp": 4}, 1)
    with recording(mesh.recorder) as ledger:
        mesh["dp"].all_reduce(torch.zeros(7))
        pending = mesh["dp"].start_all_reduce(torch.zeros(7))
        gather = mesh["dp"].start_all_gather(torch.zeros(8), torch.zeros(2))
        assert gather.done()
        pending.wait()
    assert [(s.op, s.wire_bytes) for s in ledger] == [("all_reduce", 44), ("all_gather", 24), ("all_reduce", 44)]


def test_values_stay_finite_and_the_own_part_is_in_place() -> None:
    comm = dry_mesh({"dp": 3}, 1)["dp"]
    x = torch.tensor([1.0, 2.0])
    comm.all_reduce(x, MAX)
    assert x.tolist() == [1, 2]
    out = torch.full((3, 2), -1.0)
    comm.all_gather(out, x)
    assert out.tolist() == [[1, 2]] * 3
    out[1] = 5
    comm.all_gather(out, out[1])
    assert out.tolist() == [[5, 5]] * 3
    part = torch.zeros(2)
    comm.reduce_scatter(part, torch.arange(6.0))
    assert part.tolist() == [2, 3]
    arrive = torch.zeros(4)
    comm.all_to_all(arrive, torch.arange(6.0), [1, 2, 1], [0, 2, 4])
    assert arrive.tolist() == [0, 0, 1, 0]


def test_guards_pass_with_and_without_values() -> None:
    comm = dry_mesh({"dp": 8}, 3)["dp"]
    agree(comm, "gather", "blocks.0", 7)
    with FakeTensorMode():
        agree(comm, "gather", "blocks.0", 7)
    assert comm.recorder.calls == {"control": 2}


def test_wrong_arguments_raise_as_everywhere() -> None:
    comm = dry_mesh({"dp": 4}, 0)["dp"]
    with pytest.raises(ValueError, match="out must have 4 x 2 = 8"):
        comm.all_gather(torch.zeros(6), torch.zeros(2))
    with pytest.raises(ValueError, match=r"rank is 4, valid are 0\.\.3"):
        dry_mesh({"dp": 4}, 4)


def test_a_memory_count_sees_the_chunks_that_would_arrive() -> None:
    comm = dry_mesh({"dp": 4}, 0)["dp"]
    out, full = torch.zeros(1000), torch.zeros(4000)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        comm.reduce_scatter(out, full)
    events = [e.nbytes() for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    assert max(events) == 3 * 4000 and sum(events) == 0


def test_the_number_of_tensor_operations_does_not_grow_with_the_group() -> None:
    comm = dry_mesh({"dp": 4096}, 7)["dp"]
    made: list[int] = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made.append(1)
            return func(*args, **(kwargs or {}))

    def calls() -> None:
        comm.all_gather(torch.zeros(8192), torch.zeros(2))
        comm.reduce_scatter(torch.zeros(2), torch.zeros(8192))
        comm.all_reduce(torch.zeros(5000))

    with Count():
        calls()
    assert 0 < len(made) < 60
