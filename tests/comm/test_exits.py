"""A rank that ends, in any way and at any time, never leaves the others waiting. Each test is a job of plain mpirun."""

from pathlib import Path
from textwrap import dedent

import pytest

from shardlab.comm.exits import exit_code
from tests.ranks.spawn import Ended, mpirun

# How rank 1 ends, what its message holds, and the code of the job if MPI runs by then.
WAYS = {
    "exception": ("raise RuntimeError('broken on purpose')", "RuntimeError: broken on purpose", 1),
    "sys_exit": ("sys.exit(3)", "sys.exit(3)", 3),
    "thread": (
        "t = threading.Thread(target=lambda: 1 / 0, name='loader'); t.start(); t.join(); time.sleep(60)",
        "in thread 'loader'",
        1,
    ),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", "KeyboardInterrupt", 130),
    "import": ("import a_module_that_is_not_there", "ModuleNotFoundError", 1),
    "early_return": ("leave()", "", 1),
}

# What the others do then. The one that ends has had the chance to call init.
STATES = {
    "init": "init()",
    "collective": "mesh['dp'].all_reduce(x)",
    "recv": "mesh['dp'].recv(x, 1)",
    "pending": "p = mesh['dp'].start_all_reduce(x); time.sleep(0.2); p.wait()",
    "compute": "time.sleep(1); mesh['dp'].barrier('after')",
}

PROGRAM = """
import os, signal, sys, threading, time
import torch
import shardlab.comm
from shardlab.comm import init

rank, x = int(os.environ["PMI_RANK"]), torch.ones(5)
class Return(Exception): pass
def leave(): raise Return
def main():
    if {connect}:
        mesh = init()
    print("begun", time.time(), flush=True)
    if rank == 1:
        time.sleep({delay})
        print("ends", time.time(), flush=True)
        {way}
    {state}
try:
    main()
except Return:
    pass
"""


def job(folder: Path, way: str, state: str, delay: float = 0.3) -> Ended:
    """Run the program: rank 1 ends in a way while the others are in a state."""
    text = PROGRAM.format(way=WAYS[way][0], state=STATES[state], connect=state != "init", delay=delay)
    return mpirun(folder, 3, text)


def check(ended: Ended, way: str) -> None:
    """The job ended, soon, with a code and with one message of rank 1."""
    assert ended.code is not None, f"hung:\n{ended.err}"
    assert ended.code != 0, ended.err
    ends = next(float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("ends "))
    assert ended.at - ends < 5
    message = WAYS[way][1]
    if message:
        lines = [line for line in ended.err.splitlines() if message in line]
        assert len(lines) == 1, f"the message must be there once:\n{ended.err}"
        assert lines[0].startswith("rank 1: "), lines[0]
    else:  # the others say who is missing
        assert "RankLeftError" in ended.err, ended.err
        assert "rank 1 has ended" in ended.err, ended.err


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_ends_while_others_are_in_a_collective(tmp_path: Path, way: str) -> None:
    ended = job(tmp_path, way, "collective")
    check(ended, way)
    assert ended.code == WAYS[way][2]


@pytest.mark.parametrize("state", [s for s in STATES if s != "collective"])
@pytest.mark.parametrize("way", ["exception", "early_return"])
def test_a_rank_ends_while_others_are_elsewhere(tmp_path: Path, way: str, state: str) -> None:
    check(job(tmp_path, way, state), way)


@pytest.mark.slow
@pytest.mark.parametrize("state", [s for s in STATES if s != "collective"])
@pytest.mark.parametrize("way", [w for w in WAYS if w not in ("exception", "early_return")])
def test_every_way_at_every_time(tmp_path: Path, way: str, state: str) -> None:
    check(job(tmp_path, way, state), way)


def test_exit_codes() -> None:
    assert exit_code(KeyboardInterrupt()) == 130
    assert [exit_code(SystemExit(code)) for code in (None, 0, 3, 256, "text")] == [0, 0, 3, 1, 1]
    assert exit_code(RuntimeError()) == 1


HEAD = """
import os, signal, subprocess, sys, threading, time
import torch
from shardlab.comm import init
rank = int(os.environ["PMI_RANK"])
"""


def run(folder: Path, num_ranks: int, body: str, **env: str) -> Ended:
    ended = mpirun(folder, num_ranks, HEAD + dedent(body), **env)
    assert ended.code is not None, f"hung:\n{ended.out}\n{ended.err}"
    return ended


def test_a_thread_fails_while_all_are_in_a_collective(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        2,
        """
        mesh = init()
        if rank == 1:
            threading.Timer(0.3, lambda: {}["no batch"]).start()
        mesh["dp"].recv(torch.ones(1), 1 - rank)
        """,
    )
    assert ended.code == 1
    assert "rank 1: KeyError: 'no batch'" in ended.err


INTERRUPT = """
import pathlib
note = pathlib.Path(__file__).with_name("pid")
def interrupt_rank_1():
    while not note.exists():
        time.sleep(0.05)
    time.sleep(0.7)
    os.kill(int(note.read_text()), signal.SIGINT)
    time.sleep(60)
if rank == 1:
    note.with_name("new").write_text(str(os.getpid()))
    note.with_name("new").rename(note)
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("interrupt_rank_1() if rank == 0 else init()", 'File "'),
        ("mesh = init(); interrupt_rank_1() if rank == 0 else mesh['dp'].barrier('x')", "rank 1: KeyboardInterrupt"),
        ("mesh = init(); interrupt_rank_1() if rank == 0 else None", "rank 1: KeyboardInterrupt"),
    ],
    ids=["in MPI_Init", "in a barrier", "at its end"],
)
def test_ctrl_c_reaches_a_rank_that_waits(tmp_path: Path, body: str, message: str) -> None:
    ended = run(tmp_path, 2, INTERRUPT + body)
    assert ended.code != 0
    assert message in ended.err
    assert ended.seconds < 45, "rank 0 would have slept for 60 s"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(3)", "rank 1 has ended"),
        ("sys.exit('no data here')", "no data here"),
        ("sys.excepthook = lambda *_: print('my own hook', file=sys.stderr); 1 / 0", "ended by ZeroDivisionError"),
    ],
    ids=["SystemExit", "text", "another hook"],
)
def test_ends_that_reach_no_hook(tmp_path: Path, body: str, message: str) -> None:
    program = f"mesh = init()\nif rank == 1:\n    {body}\nmesh['dp'].barrier('all')"
    ended = run(tmp_path, 2, program)
    assert ended.code != 0
    assert message in ended.err


def test_a_caught_exit_is_no_end(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        2,
        """
        def stop():
            try:
                sys.exit(3)
            except SystemExit:
                print("caught")
        stop()
        try:
            sys.exit(4)
        except SystemExit as error:
            kept = error
        init()["dp"].barrier("all")
        """,
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("caught") == 2


@pytest.mark.parametrize("body", ["", "if rank == 0: sys.exit(0)"], ids=["return", "sys.exit(0)"])
def test_a_job_in_which_nobody_calls_init_ends_normally(tmp_path: Path, body: str) -> None:
    ended = run(tmp_path, 3, body)
    assert (ended.code, ended.err) == (0, "")


NORMAL = """
mesh = init({"pp": 2, "dp": 2})
x = torch.full((5,), float(rank))
mesh["dp"].all_reduce(x)
if mesh.rank == 0:
    mesh["pp"].start_send(x, 1).wait()
elif mesh.rank == 2:
    mesh["pp"].recv(x, 0)
mesh["pp", "dp"].barrier("trained")
if mesh.rank < 2:  # ranks 2 and 3 have nothing more to do
    for _ in range(20):
        time.sleep(0.02)
        mesh["dp"].all_reduce(x)
mesh["dp"].broadcast(x, 0)
"""


def test_ranks_that_end_at_different_times_raise_no_alarm(tmp_path: Path) -> None:
    for _ in range(2):
        ended = run(tmp_path, 4, NORMAL, SHARDLAB_WAIT_REPORT_S="0.1")
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.slow
def test_fifty_normal_ends_raise_no_alarm(tmp_path: Path) -> None:
    for _ in range(50):
        ended = run(tmp_path, 4, NORMAL, SHARDLAB_WAIT_REPORT_S="0.1")
        assert (ended.code, ended.err) == (0, "")


def test_a_dropped_pending_is_an_error_at_the_end(tmp_path: Path) -> None:
    ended = run(tmp_path, 2, 'init()["dp"].start_all_reduce(torch.ones(3))')
    assert ended.code == 1
    assert "ends with operations that it started and never waited for: all_reduce #1" in ended.err


def test_a_message_that_nobody_received_is_an_error_at_the_end(tmp_path: Path) -> None:
    ended = run(tmp_path, 2, 'mesh = init()\nif rank == 1: mesh["dp"].send(torch.ones(3), 0)')
    assert ended.code == 1
    assert "rank 1 sent 1 messages from rank 1 to rank 0 with tag 0 on group dp, rank 0 received 0" in ended.err


def test_children_of_a_rank_are_no_ranks(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        2,
        """
        mesh = init()
        child = "import shardlab.comm as c; assert c.init().size == 1; import sys; sys.exit(5)"
        assert subprocess.run([sys.executable, "-c", child]).returncode == 5
        pid = os.fork()
        if pid == 0:
            try:
                sys.excepthook(ValueError, ValueError("of the child"), None)
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        mesh["dp"].barrier("still here")
        """,
    )
    assert ended.code == 0, ended.err
    assert "ValueError: of the child" in ended.err


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (
            "init()['dp'].recv(torch.ones(3), 1 - rank)",
            "DeadlockError",
            ["rank 0 waits for recv #1 (3 float32, tag 0) from rank 1", "rank 1 waits for recv #1"],
        ),
        (
            "mesh = init()\nmesh['dp'].recv(torch.ones(3), 1) if rank == 0 else mesh['dp'].barrier('end')",
            "DeadlockError",
            ["rank 1 waits for barrier #1 ('end')", "rank 0 waits for recv #1"],
        ),
        ("init({'dp': 2} if rank == 0 else {'tp': 2})", "DivergedError", ["MeshShape(dp 2)", "MeshShape(tp 2)"]),
        ("init()['dp'].barrier(f'epoch {rank}')", "DivergedError", ["'epoch 0'", "'epoch 1'"]),
        (
            "mesh = init()\nmesh['dp'].send(torch.ones(2), 1) if rank == 0 else mesh['dp'].recv(torch.ones(3), 0)",
            "DivergedError",
            ["8 bytes arrived from rank 0, the tensor has 12"],
        ),
    ],
    ids=["both receive", "receive and barrier", "axes", "barrier names", "message sizes"],
)
def test_ranks_that_diverge_end_with_what_each_does(tmp_path: Path, body: str, error: str, said: list[str]) -> None:
    ended = run(tmp_path, 2, body, SHARDLAB_WAIT_REPORT_S="0.5")
    assert ended.code == 1
    assert error in ended.err
    for text in said:
        assert text in ended.err, ended.err


SLOW = """
mesh, x = init(), torch.ones(3)
if rank == 1:
    time.sleep({seconds})
mesh["dp"].all_reduce(x)
print(x.tolist())
"""


def test_a_slow_rank_is_reported_and_not_killed(tmp_path: Path) -> None:
    ended = run(tmp_path, 2, SLOW.format(seconds=2), SHARDLAB_WAIT_REPORT_S="0.1")
    assert ended.code == 0
    assert ended.out.count("[2.0, 2.0, 2.0]") == 2
    assert ended.err.count("rank 0: has waited") == 1


@pytest.mark.slow
def test_a_rank_that_is_slow_for_a_minute_is_not_killed(tmp_path: Path) -> None:
    ended = mpirun(tmp_path, 2, HEAD + SLOW.format(seconds=62), limit_s=120)
    assert ended.code == 0, ended.err
    assert ended.out.count("[2.0, 2.0, 2.0]") == 2
