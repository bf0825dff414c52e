"""The contract of collectives: their results, bit for bit, in both forms, for every dtype and shape."""

import torch

from shardlab.comm import MAX, MIN, Mesh
from tests.comm.contract_values import HOW, MOVED, NUMELS, REDUCED, call, check, draw, same, strided, summed


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
