"""The contract of wrong calls, of what is counted, and of groups."""

from collections.abc import Callable
from hashlib import sha256
from random import Random

import torch

from shardlab.comm import MAX, Communicator, Mesh, agree, recording
from tests.comm.contract_under_way import one_of_each
from tests.comm.contract_values import check, draw, raises, same, summed


def wrong_arguments_raise_alike_everywhere(mesh: Mesh) -> None:
    comm, size = mesh["dp"], mesh["dp"].size
    f, b, c = torch.zeros(4), torch.zeros(4, dtype=torch.bool), torch.zeros(4, dtype=torch.complex64)
    wrong: list[tuple[Callable[[], object], tuple[str, ...]]] = [
        (lambda: comm.all_reduce(b), ("bool", "all_reduce")),
        (lambda: comm.all_reduce(b, MAX), ("bool", "all_reduce")),
        (lambda: comm.reduce_scatter(b, torch.zeros(4 * size, dtype=torch.bool)), ("bool", "reduce_scatter")),
        (lambda: comm.all_reduce(c), ("complex", "view_as_real")),
        (lambda: comm.all_reduce(f, "sum"), ("op is 'sum'", "ReduceOp.SUM")),  # type: ignore[arg-type]
        (lambda: comm.all_reduce(torch.eye(2).to_sparse()), ("sparse", "to_dense")),
        (lambda: comm.all_gather(torch.zeros(4 * size + 1), f), (f"{4 * size + 1} elements", f"{4 * size}")),
        (lambda: comm.all_gather(torch.zeros(4 * size).double(), f), ("float64", "float32")),
        (lambda: comm.reduce_scatter(f, torch.zeros(4 * size + 2)), (f"{4 * size + 2} elements", f"{4 * size}")),
        (lambda: comm.all_to_all(torch.zeros(size, 2), torch.zeros(size, 3)), ("dim 0",)),
        (lambda: comm.all_to_all(torch.zeros(size), torch.zeros(size), [1] * (size + 1)), ("out_splits",)),
        (lambda: comm.all_to_all(torch.zeros(size), torch.zeros(size), None, [2] * size), ("in_splits",)),
        (lambda: comm.broadcast(f, size), ("src_index", f"0..{size - 1}")),
        (lambda: comm.broadcast(f, -1), ("src_index",)),
        (lambda: comm.send(f, size), ("dst_index", f"0..{size - 1}")),
        (lambda: comm.send(f, comm.index), ("itself",)),
        (lambda: comm.recv(f, comm.index), ("itself",)),
        (lambda: comm.all_reduce(torch.zeros(1).expand(3)), ("x is expanded", "contiguous")),
        (lambda: comm.all_gather(torch.zeros(1).expand(4 * size), f), ("out is expanded",)),
        (lambda: comm.reduce_scatter(torch.zeros(2, 1).expand(2, 2), torch.zeros(4 * size)), ("out is expanded",)),
        (lambda: comm.broadcast(torch.zeros(1).expand(3), 0), ("x is expanded",)),
        (lambda: comm.start_all_reduce(f.to("meta")), ("meta", "cpu")),
    ]
    if size > 1:
        wrong.append((lambda: comm.all_to_all(torch.zeros(size + 1), torch.zeros(size + 1)), ("do not divide",)))
    for number, (attempt, words) in enumerate(wrong):
        with raises(ValueError, *words) as text:
            attempt()
        own = str(comm.index)  # the only thing that may differ is the rank's own index
        digest = sha256(text[0].replace(f"index is {own},", "index is I,").encode()).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        all_of_them = torch.zeros(size, 32, dtype=torch.uint8)
        comm.all_gather(all_of_them, mine)  # and the group still works
        check(bool((all_of_them == mine).all()), f"ranks say different things about wrong call {number}: {text[0]}")


def wire_program(comm: Communicator) -> list[tuple[str, int]]:
    """Make one call of each kind; (op, bytes that this index must have posted)."""
    size, me = comm.size, comm.index
    n, more = divmod(10 * size + 3, size)
    piece = n + (me < more)
    comm.all_reduce(torch.ones(10 * size + 3))
    comm.all_reduce(torch.ones(max(size - 1, 1), dtype=torch.bfloat16), MAX)  # the last index has no piece of its own
    small = max(size - 1, 1)
    own_small = (small // size) + (me < small % size)
    comm.all_gather(torch.zeros(6 * size, dtype=torch.int64), torch.zeros(6, dtype=torch.int64))
    buffer = torch.zeros(size, 5, dtype=torch.bfloat16)
    comm.all_gather(buffer, buffer[me])
    comm.reduce_scatter(torch.zeros(7), torch.ones(7 * size))
    comm.all_to_all(torch.zeros(2 * size, 3), torch.zeros(2 * size, 3))
    comm.all_to_all(torch.zeros(size * me), torch.zeros(sum(range(size))), [me] * size, list(range(size)))
    comm.broadcast(torch.ones(11), size - 1)
    comm.barrier("counted")
    expected = [
        ("all_reduce", 4 * (10 * size + 3 - piece) + 4 * piece * (size - 1)),
        ("all_reduce", 2 * (small - own_small) + 2 * own_small * (size - 1)),
        ("all_gather", 8 * 6 * (size - 1)),
        ("all_gather", 2 * 5 * (size - 1)),
        ("reduce_scatter", 4 * 7 * (size - 1)),
        ("all_to_all", 4 * 6 * (size - 1)),
        ("all_to_all", 4 * (sum(range(size)) - me)),
        ("broadcast", 4 * 11 * (size - 1) if me == size - 1 else 0),
        ("barrier", 0),
    ]
    if size > 1 and me < 2:
        (comm.send if me == 0 else comm.recv)(torch.ones(9, dtype=torch.float64), 1 - me)
        expected.append(("send", 72) if me == 0 else ("recv", 0))
    return expected


def wire_bytes_are_those_of_the_formulas(mesh: Mesh) -> None:
    comm = mesh["dp"]
    before = mesh.recorder.wire_bytes["dp"]
    with recording(mesh.recorder) as ledger:
        expected = wire_program(comm)
    got = [(span.op, span.wire_bytes) for span in ledger]
    check(got == expected, f"index {comm.index} of {comm.size}: posted {got}, formulas say {expected}")
    check(mesh.recorder.wire_bytes["dp"] - before == sum(n for _, n in expected), mesh.recorder.wire_bytes)
    check({span.axis for span in ledger} == {"dp"} and {span.rank for span in ledger} == {mesh.rank}, ledger)


def start_forms_count_alike(mesh: Mesh) -> None:
    comm = mesh["dp"]
    with recording(mesh.recorder) as ledger:
        for p, _ in one_of_each(comm, 1):
            p.wait()
        x, y = torch.zeros(13), torch.zeros(3 * comm.size + 1, dtype=torch.bfloat16)
        comm.all_reduce(x)
        comm.all_gather(torch.zeros(4 * comm.size), torch.zeros(4))
        comm.all_reduce(y)
        comm.reduce_scatter(torch.zeros(5), torch.zeros(5 * comm.size))
        comm.all_to_all(torch.zeros(comm.size, 2), torch.zeros(comm.size, 2))
        comm.broadcast(torch.zeros(6, dtype=torch.int32), 1 % comm.size)
        comm.barrier("b1")
    counted = [(span.op, span.payload_bytes, span.wire_bytes) for span in ledger]
    check(len(counted) == 14 and counted[:7] == counted[7:], counted)


def labels_reach_the_ledger(mesh: Mesh) -> None:
    comm, recorder = mesh["dp"], mesh.recorder
    wire, control = recorder.wire_bytes["dp"], recorder.calls["control"]
    with recording(recorder) as ledger:
        with recorder.labelled(name="blocks.0", micro_batch=3):
            pending = comm.start_all_gather(torch.zeros(2 * comm.size), torch.zeros(2))
            with recorder.labelled(control=True):
                comm.all_reduce(torch.zeros(4))
        pending.wait()  # labelled as it was when it started
        agree(comm, "gather", "blocks.0", 7)
    spans = {(span.op, span.name, span.micro_batch) for span in ledger}
    guards = {("control", "", 0)} if comm.size > 1 else set()
    check(spans == {("control", "blocks.0", 3), ("all_gather", "blocks.0", 3)} | guards, spans)
    check(recorder.wire_bytes["dp"] - wire == 8 * (comm.size - 1), "control messages are outside wire bytes")
    check(recorder.calls["control"] - control == 1 + len(guards), recorder.calls)


def groups_over_one_and_two_axes(mesh: Mesh) -> None:
    """pp 2 x dp 2: dp neighbours are ranks apart by 1, pp neighbours by 2."""
    pp, dp = divmod(mesh.rank, 2)
    expected = {
        "dp": (2 * pp, 2 * pp + 1),
        "pp": (dp, dp + 2),
        ("pp", "dp"): (0, 1, 2, 3),
        ("dp", "ep"): (2 * pp, 2 * pp + 1),
    }
    for axes, ranks in expected.items():
        comm = mesh[axes]
        check(comm is mesh[axes], f"{axes}: connected twice")
        check(comm.ranks == ranks and comm.ranks[comm.index] == mesh.rank, f"{axes}: {comm.ranks}")
        check(comm.axes == ((axes,) if isinstance(axes, str) else axes), comm.axes)
        x = draw(mesh.rank, (6,), torch.float32)
        comm.all_reduce(x)
        same(x, summed([draw(rank, (6,), torch.float32) for rank in ranks]), f"sum over {axes}")
        out = torch.zeros(len(ranks), dtype=torch.int64)
        comm.all_gather(out, torch.tensor(mesh.rank))
        check(out.tolist() == list(ranks), out)
        with recording(mesh.recorder) as ledger:
            expected_bytes = wire_program(comm)
        check([(span.op, span.wire_bytes) for span in ledger] == expected_bytes, ledger)
        check({span.axis for span in ledger} == {"+".join(comm.axes)}, ledger)


def groups_do_not_mix(mesh: Mesh) -> None:
    """The same calls under way on three groups at once, waited for in an order of the rank's own."""
    groups = [mesh["dp"], mesh["pp"], mesh["pp", "dp"]]
    for seed in range(4):
        pending = [pair for salt in range(3) for comm in groups for pair in one_of_each(comm, 100 * salt)]
        Random(f"{seed} {mesh.rank}").shuffle(pending)
        for p, verify in pending:
            p.wait()
            verify()
