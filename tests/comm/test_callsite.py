"""call_site: the caller's line, whatever of this package lies between."""

import sys

import torch

from shardlab.comm import Mesh, agree, run_ranks
from shardlab.comm.callsite import Site, call_site
from shardlab.comm.lockstep import LockstepOperation


def test_it_is_the_line_that_calls() -> None:
    here, line = call_site(), sys._getframe().f_lineno
    assert here == Site(__file__, line)
    assert str(here) == f"{__file__}:{line}"


def test_frames_of_this_package_are_passed_over() -> None:
    """A lockstep operation asks for its site some frames below the call; a guard some frames more."""

    def main(mesh: Mesh) -> tuple[Site, int]:
        pending, line = mesh["dp"].start_all_reduce(torch.zeros(1)), sys._getframe().f_lineno
        pending.wait()
        assert isinstance(pending, LockstepOperation)
        return pending.site, line

    for site, line in run_ranks({"dp": 2}, main):
        assert site == Site(__file__, line)


def test_a_guard_is_passed_over_too() -> None:
    lines: list[int] = []

    def main(mesh: Mesh) -> None:
        if mesh.rank == 0:
            lines.append(sys._getframe().f_lineno + 1)
            agree(mesh["dp"], "gather", "u", 1)

    try:
        run_ranks({"dp": 2}, main)
    except Exception as error:
        assert f"at {__file__}:{lines[0]};" in str(error)
    else:
        raise AssertionError("rank 0 waits alone")
