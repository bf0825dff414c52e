"""What every backend owes: functions of a mesh that raise AssertionError on the rank that sees a fault.

Each is called on every rank of a mesh with the axis "dp" (CONTRACT, any size), or with "pp" and "dp" of 2 each
(SUBGROUPS). Inputs are drawn from (index, salt), so that each rank knows what all others contribute and computes the
expected result by itself, with a loop that shares no code with shardlab.comm.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import torch
from torch import Tensor

from shardlab.comm import MAX, MIN, SUM, Communicator, Mesh, ReduceOp, agree, recording

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
REDUCED = (*FLOATS, *INTEGERS)
MOVED = (*REDUCED, torch.bool)
NUMELS = (0, 1, 7, 5003)  # the last one reaches the fused kernel, where it is built

Kind = str  # "blocking" or "start"
HOW: tuple[Kind, ...] = ("blocking", "start")


# ---- help ------------------------------------------------------------------------------------------------------------


def draw(index: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> Tensor:
    """The values that an index contributes; sums of floats need rounding, sums of integers wrap."""
    rng = torch.Generator().manual_seed(7919 * salt + index + 1)
    if dtype is torch.bool:
        return torch.rand(shape, generator=rng) < 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=rng, dtype=torch.float64) * 3).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(max(info.min, -(2**40)), min(info.max, 2**40), shape, generator=rng).to(dtype)


def summed(parts: list[Tensor], op: ReduceOp = SUM) -> Tensor:
    """One process: contributions in rank order, 16-bit floats in fp32 and rounded once."""
    wide = torch.float32 if parts[0].dtype in (torch.bfloat16, torch.float16) else parts[0].dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        part = part.to(wide)
        total = {SUM: torch.add, MAX: torch.maximum, MIN: torch.minimum}[op](total, part)
    return total.to(parts[0].dtype)


def same(got: Tensor, want: Tensor, what: str) -> None:
    """Equal shape, dtype and bits."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{what}: got {got.dtype} {tuple(got.shape)}, want {want.dtype} {tuple(want.shape)}")
    bits = [torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()).reshape(-1).view(torch.uint8) for x in (got, want)]
    if not torch.equal(*bits):
        wrong = (bits[0] != bits[1]).nonzero().flatten().tolist()
        raise AssertionError(f"{what}: {len(wrong)} bytes differ, first at {wrong[:5]}; got {got}, want {want}")


def check(condition: bool, what: object) -> None:
    """An assert that shows ``what`` without pytest's help."""
    if not condition:
        raise AssertionError(str(what))


def call(comm: Communicator, how: Kind, kind: str, *args: Any) -> None:
    """Make a call in its blocking or in its start_ form."""
    if how == "blocking":
        getattr(comm, kind)(*args)
    else:
        getattr(comm, f"start_{kind}")(*args).wait()


def strided(x: Tensor) -> Tensor:
    """The same values in memory that is not contiguous."""
    holder = x.new_zeros((*x.shape, 2))
    holder[..., 0] = x
    view = holder[..., 0]
    check(x.numel() < 2 or not view.is_contiguous(), "the view should not be contiguous")
    return view


@contextmanager
def raises(kind: type[Exception], *words: str) -> Iterator[list[str]]:
    """The block raises ``kind`` with all ``words`` in its text; yields a list that gets the text."""
    text: list[str] = []
    try:
        yield text
    except kind as error:
        text.append(str(error))
        missing = [word for word in words if word not in str(error)]
        check(not missing, f"{missing} not in {error}")
    else:
        raise AssertionError(f"no {kind.__name__}")


# ---- collectives -----------------------------------------------------------------------------------------------------


def all_reduce_adds_in_rank_order(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for salt, dtype in enumerate(REDUCED):
        for shape in [(n,) for n in NUMELS] + [(), (3, 5)]:
            want = summed([draw(i, shape, dtype, salt) for i in range(comm.size)])
            for how in HOW:
                x = draw(comm.index, shape, dtype, salt)
                call(comm, how, "all_reduce", x)
                same(x, want, f"{how} all_reduce of {dtype} {shape}")
                x = strided(draw(comm.index, shape, dtype, salt))
                call(comm, how, "all_reduce", x)
                same(x, want, f"{how} all_reduce of strided {dtype} {shape}")


def all_reduce_takes_maximum_and_minimum(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for salt, dtype in enumerate(REDUCED):
        for op in (MAX, MIN):
            for how in HOW:
                x = draw(comm.index, (11,), dtype, salt)
                call(comm, how, "all_reduce", x, op)
                want = summed([draw(i, (11,), dtype, salt) for i in range(comm.size)], op)
                same(x, want, f"{how} {op} of {dtype}")


def sums_are_not_those_of_another_order(mesh: Mesh) -> None:
    """Guards the tests above: their inputs tell orders and precisions apart."""
    comm = mesh["dp"]
    if comm.size < 3:
        return
    for dtype in (torch.float32, torch.float64):
        parts = [draw(i, (5003,), dtype) for i in range(comm.size)]
        check(not torch.equal(summed(parts), summed(parts[::-1])), f"order makes no difference in {dtype}")
    for dtype in (torch.bfloat16, torch.float16):
        parts = [draw(i, (5003,), dtype) for i in range(comm.size)]
        narrow = parts[0]
        for part in parts[1:]:
            narrow = narrow + part
        check(not torch.equal(summed(parts), narrow), f"rounding once makes no difference in {dtype}")


def all_gather_concatenates(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for salt, dtype in enumerate(MOVED):
        for shape in [(n,) for n in NUMELS] + [(), (2, 3)]:
            parts = [draw(i, shape, dtype, salt).reshape(-1) for i in range(comm.size)]
            want = torch.cat(parts)
            for how in HOW:
                out = torch.zeros(want.numel(), dtype=dtype)
                shard = draw(comm.index, shape, dtype, salt)
                call(comm, how, "all_gather", out, shard)
                same(out, want, f"{how} all_gather of {dtype} {shape}")
                same(shard, draw(comm.index, shape, dtype, salt), "the shard after all_gather")
                out = strided(out.zero_())
                call(comm, how, "all_gather", out, strided(shard))
                same(out, want, f"{how} all_gather of strided {dtype} {shape}")


def all_gather_in_place(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for dtype in MOVED:
        for n in NUMELS:
            for how in HOW:
                out = torch.zeros(comm.size, n, dtype=dtype)
                out[comm.index] = draw(comm.index, (n,), dtype)
                call(comm, how, "all_gather", out, out[comm.index])
                want = torch.stack([draw(i, (n,), dtype) for i in range(comm.size)])
                same(out, want, f"{how} all_gather in place of {n} {dtype}")


def reduce_scatter_adds_in_rank_order(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for salt, dtype in enumerate(REDUCED):
        for n in NUMELS:
            whole = summed([draw(i, (comm.size, n), dtype, salt) for i in range(comm.size)])
            for how in HOW:
                full = draw(comm.index, (comm.size, n), dtype, salt)
                out = torch.zeros(n, dtype=dtype)
                call(comm, how, "reduce_scatter", out, full)
                same(out, whole[comm.index], f"{how} reduce_scatter of {n} {dtype}")
                same(full, draw(comm.index, (comm.size, n), dtype, salt), "the contribution after reduce_scatter")
                out = strided(out.zero_())
                call(comm, how, "reduce_scatter", out, strided(full))
                same(out, whole[comm.index], f"{how} reduce_scatter of strided {n} {dtype}")


def reduce_scatter_into_its_input(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for dtype in REDUCED:
        for how in HOW:
            full = draw(comm.index, (comm.size, 9), dtype)
            call(comm, how, "reduce_scatter", full[comm.index], full)
            whole = summed([draw(i, (comm.size, 9), dtype) for i in range(comm.size)])
            same(full[comm.index], whole[comm.index], f"{how} reduce_scatter in place of {dtype}")


def all_to_all_transposes(mesh: Mesh) -> None:
    comm, size = mesh["dp"], mesh["dp"].size
    for salt, dtype in enumerate(MOVED):
        for rows, width in ((0, 3), (1, 1), (3, 5), (2, 2048)):
            shape = (size * rows, width)
            blocks = [draw(i, shape, dtype, salt).split(rows) if rows else () for i in range(size)]
            mine = [b[comm.index] for b in blocks if b]
            want = torch.cat(mine) if mine else torch.zeros(shape, dtype=dtype)
            for how in HOW:
                out = torch.zeros(shape, dtype=dtype)
                call(comm, how, "all_to_all", out, draw(comm.index, shape, dtype, salt))
                same(out, want, f"{how} all_to_all of {dtype} {shape}")
                out = strided(out.zero_())
                call(comm, how, "all_to_all", out, strided(draw(comm.index, shape, dtype, salt)))
                same(out, want, f"{how} all_to_all of strided {dtype} {shape}")


def all_to_all_with_splits(mesh: Mesh) -> None:
    """Row counts from nothing to several, different for every pair."""
    comm, size = mesh["dp"], mesh["dp"].size

    def rows(src: int, dst: int) -> int:
        return (2 * src + 3 * dst) % 4

    for dtype in (torch.float32, torch.bool, torch.int64):
        leave = [rows(comm.index, i) for i in range(size)]
        arrive = [rows(i, comm.index) for i in range(size)]
        inputs = [draw(i, (sum(rows(i, j) for j in range(size)), 3), dtype) for i in range(size)]
        cut = [inputs[i].split([rows(i, j) for j in range(size)])[comm.index] for i in range(size)]
        for how in HOW:
            out = torch.zeros(sum(arrive), 3, dtype=dtype)
            call(comm, how, "all_to_all", out, inputs[comm.index].clone(), arrive, leave)
            same(out, torch.cat(cut), f"{how} all_to_all with splits of {dtype}")


def broadcast_copies_from_any_index(mesh: Mesh) -> None:
    comm = mesh["dp"]
    for dtype in MOVED:
        for src in range(comm.size):
            for shape in ((), (0,), (7,), (3, 4)):
                want = draw(src, shape, dtype)
                for how in HOW:
                    x = draw(comm.index, shape, dtype)
                    call(comm, how, "broadcast", x, src)
                    same(x, want, f"{how} broadcast of {dtype} {shape} from {src}")
                    x = strided(draw(comm.index, shape, dtype))
                    call(comm, how, "broadcast", x, src)
                    same(x, want, f"{how} broadcast of strided {dtype} {shape} from {src}")


def barrier_meets_by_name(mesh: Mesh) -> None:
    comm = mesh["dp"]
    before = comm.recorder.calls["barrier"]
    for how in HOW:
        call(comm, how, "barrier", "here")
    check(comm.recorder.calls["barrier"] == before + 2, comm.recorder.calls)


# ---- messages --------------------------------------------------------------------------------------------------------


def messages_go_round_a_ring(mesh: Mesh) -> None:
    comm = mesh["dp"]
    if comm.size == 1:
        return
    to, source = (comm.index + 1) % comm.size, (comm.index - 1) % comm.size
    for dtype in MOVED:
        for shape in ((), (0,), (7,), (3, 4)):
            sent, got = strided(draw(comm.index, shape, dtype)), torch.zeros(shape, dtype=dtype)
            pending = [comm.start_send(sent, to), comm.start_recv(got, source)]
            for p in pending:
                p.wait()
            same(got, draw(source, shape, dtype), f"start_ message of {dtype} {shape}")
            got = strided(torch.zeros(shape, dtype=dtype))
            halves = [partial(comm.send, sent, to), partial(comm.recv, got, source)]
            if comm.index == comm.size - 1:  # the ring of blocking sends needs one rank that receives first
                halves.reverse()
            for half in halves:
                half()
            same(got, draw(source, shape, dtype), f"blocking message of {dtype} {shape}")


def messages_pair_by_tag_and_then_in_order(mesh: Mesh) -> None:
    comm = mesh["dp"]
    if comm.size == 1 or comm.index > 1:
        return
    tags = [5, 0, 5, 9]
    if comm.index == 0:
        pending = [comm.start_send(torch.tensor([float(i)]), 1, tag) for i, tag in enumerate(tags)]
    else:
        order = [9, 5, 0, 5]
        got = {i: torch.zeros(1) for i in range(4)}
        pending = [comm.start_recv(got[i], 0, tag) for i, tag in enumerate(order)]
    for p in reversed(pending):
        p.wait()
    if comm.index == 1:
        check([int(got[i]) for i in range(4)] == [3, 0, 1, 2], got)


# ---- many at once ----------------------------------------------------------------------------------------------------


def _one_of_each(comm: Communicator, salt: int) -> list[tuple[Any, Callable[[], None]]]:
    """Start one of each collective; (pending, check of its result)."""
    size, me = comm.size, comm.index
    x, y = draw(me, (13,), torch.float32, salt), draw(me, (3 * size + 1,), torch.bfloat16, salt + 1)
    out, shard = torch.zeros(size * 4), draw(me, (4,), torch.float32, salt + 2)
    part, full = torch.zeros(5), draw(me, (size, 5), torch.float32, salt + 3)
    arrive, leave = torch.zeros(size, 2), draw(me, (size, 2), torch.float32, salt + 4)
    root = salt % size
    b = draw(me, (6,), torch.int32, salt + 5)

    def others(shape: tuple[int, ...], dtype: torch.dtype, at: int) -> list[Tensor]:
        return [draw(i, shape, dtype, salt + at) for i in range(size)]

    return [
        (comm.start_all_reduce(x), lambda: same(x, summed(others((13,), torch.float32, 0)), "sum")),
        (comm.start_all_gather(out, shard), lambda: same(out, torch.cat(others((4,), torch.float32, 2)), "gather")),
        (
            comm.start_all_reduce(y),
            lambda: same(y, summed(others((3 * size + 1,), torch.bfloat16, 1)), "second sum"),
        ),
        (
            comm.start_reduce_scatter(part, full),
            lambda: same(part, summed(others((size, 5), torch.float32, 3))[me], "reduce_scatter"),
        ),
        (
            comm.start_all_to_all(arrive, leave),
            lambda: same(arrive, torch.stack([z[me] for z in others((size, 2), torch.float32, 4)]), "all_to_all"),
        ),
        (comm.start_broadcast(b, root), lambda: same(b, others((6,), torch.int32, 5)[root], "broadcast")),
        (comm.start_barrier(f"b{salt}"), lambda: None),
    ]


def waits_come_in_any_order(mesh: Mesh) -> None:
    """Many under way at once; each rank waits in an order of its own, and polls some of them."""
    comm = mesh["dp"]
    for seed in range(6):
        pending = [pair for salt in range(4) for pair in _one_of_each(comm, 10 * salt)]
        order = Random(f"{seed} {comm.index}")
        order.shuffle(pending)
        for p, verify in pending:
            if order.random() < 0.3:
                while not p.done():
                    pass
            p.wait()
            verify()


def blocking_calls_pass_those_under_way(mesh: Mesh) -> None:
    comm = mesh["dp"]
    pending = _one_of_each(comm, 3)
    x = draw(comm.index, (8,), torch.float64)
    comm.all_reduce(x)
    same(x, summed([draw(i, (8,), torch.float64) for i in range(comm.size)]), "sum that passed others")
    messages_go_round_a_ring(mesh)
    for p, verify in reversed(pending):
        p.wait()
        p.wait()  # again is harmless
        verify()


def parameters_can_be_moved(mesh: Mesh) -> None:
    """Leaves that require a gradient are written like any other tensor."""
    comm = mesh["dp"]
    p = torch.nn.Parameter(draw(comm.index, (4,), torch.float32))
    for how in HOW:
        call(comm, how, "broadcast", p, 0)
        same(p, draw(0, (4,), torch.float32), "broadcast parameter")
        call(comm, how, "all_gather", torch.zeros(4 * comm.size), p)
        check(p.requires_grad and p.is_leaf and p.grad_fn is None, p)


def a_group_of_one_is_a_copy(mesh: Mesh) -> None:
    comm = mesh["an axis that is not there"]
    check((comm.size, comm.index, comm.ranks) == (1, 0, (mesh.rank,)), comm)
    x = draw(mesh.rank, (5,), torch.float32)
    want = x.clone()
    for how in HOW:
        out = [torch.zeros(5) for _ in range(3)]
        call(comm, how, "all_reduce", x)
        call(comm, how, "broadcast", x, 0)
        call(comm, how, "all_gather", out[0], x)
        call(comm, how, "reduce_scatter", out[1], x)
        call(comm, how, "all_to_all", out[2], x)
        call(comm, how, "barrier", "alone")
        for got in (x, *out):
            same(got, want, f"{how} call alone")


# ---- wrong calls -----------------------------------------------------------------------------------------------------


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


# ---- what is counted -------------------------------------------------------------------------------------------------


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
        for p, _ in _one_of_each(comm, 1):
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


# ---- groups ----------------------------------------------------------------------------------------------------------


def groups_over_one_and_two_axes(mesh: Mesh) -> None:
    """pp 2 x dp 2: dp neighbours are ranks apart by 1, pp neighbours by 2."""
    pp, dp = divmod(mesh.rank, 2)
    expected = {
        "dp": (2 * pp, 2 * pp + 1),
        "pp": (dp, dp + 2),
        ("pp", "dp"): (0, 1, 2, 3),
        ("dp", "an axis that is not there"): (2 * pp, 2 * pp + 1),
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
        pending = [pair for salt in range(3) for comm in groups for pair in _one_of_each(comm, 100 * salt)]
        Random(f"{seed} {mesh.rank}").shuffle(pending)
        for p, verify in pending:
            p.wait()
            verify()


CONTRACT: tuple[Callable[[Mesh], None], ...] = (
    all_reduce_adds_in_rank_order,
    all_reduce_takes_maximum_and_minimum,
    sums_are_not_those_of_another_order,
    all_gather_concatenates,
    all_gather_in_place,
    reduce_scatter_adds_in_rank_order,
    reduce_scatter_into_its_input,
    all_to_all_transposes,
    all_to_all_with_splits,
    broadcast_copies_from_any_index,
    barrier_meets_by_name,
    messages_go_round_a_ring,
    messages_pair_by_tag_and_then_in_order,
    waits_come_in_any_order,
    blocking_calls_pass_those_under_way,
    parameters_can_be_moved,
    a_group_of_one_is_a_copy,
    wrong_arguments_raise_alike_everywhere,
    wire_bytes_are_those_of_the_formulas,
    start_forms_count_alike,
    labels_reach_the_ledger,
)
SUBGROUPS: tuple[Callable[[Mesh], None], ...] = (groups_over_one_and_two_axes, groups_do_not_mix)
