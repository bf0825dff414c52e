"""init: axes, backends, and what it sets up."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.comm import Mesh, init, run_ranks
from shardlab.comm.launcher import Launch
from shardlab.comm.process import Process, resolve
from shardlab.plan.mesh import MeshShape
from tests.ranks.spawn import mpirun


def test_no_axes_are_data_parallel() -> None:
    assert resolve(None, 6) == MeshShape({"dp": 6})


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_minus_one_is_filled_in(pp: int, dp: int, tp: int) -> None:
    assert resolve({"pp": pp, "dp": -1, "tp": tp}, pp * dp * tp).sizes == {"pp": pp, "dp": dp, "tp": tp}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"dp": 4, "tp": 2}, r"needs 8 ranks, this job has 6; start `mpirun -n 8 python"),
        ({"dp": -1, "tp": -1}, r"axes \['dp', 'tp'\] are all -1"),
        ({"dp": -1, "tp": 4}, r"6 ranks do not divide by the 4 .* `mpirun -n 4 python"),
        ({"dp": 0}, "'dp' has size 0"),
        ({"dp": -2}, "'dp' has size -2"),
    ],
)
def test_wrong_axes_say_what_would_be_right(axes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(axes, 6)


def test_alone_is_a_world_of_one() -> None:
    mesh = init()
    assert (mesh.rank, mesh.size, mesh.device) == (0, 1, torch.device("cpu"))
    assert init({"dp": 1}) is mesh
    assert init({"dp": 1, "tp": -1}) is init({"tp": 1, "dp": 1})
    assert init({"tp": 1}) is not mesh
    x = torch.ones(3)
    mesh["dp"].all_reduce(x)
    mesh["dp"].barrier("alone")
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_backends() -> None:
    with pytest.raises(ValueError, match="backend is 'nccl', valid are auto, mpi, solo, torch"):
        init(backend="nccl")
    assert init(backend="solo") is init()
    with pytest.raises(ValueError, match="'mpi', but this process is connected over 'solo'"):
        init(backend="mpi")


def test_torchrun_is_refused_by_name() -> None:
    process = Process(Launch("torchrun", 0, 2, 2))
    with pytest.raises(NotImplementedError, match=r"torch backend is not built yet; start with `mpirun -n 2 python"):
        process.connect("auto")


def _inside(mesh: Mesh) -> bool:
    again = init({"tp": 2}) is init({"tp": 2})
    return init() is mesh and init({"dp": 2}) is mesh and init({"dp": -1}) is mesh and again


def test_inside_run_ranks_it_is_the_mesh_of_the_rank() -> None:
    assert run_ranks({"dp": 2}, _inside) == [True, True]


def _wrong(mesh: Mesh) -> None:
    with pytest.raises(ValueError, match="this job has 2"):
        init({"dp": 3})


def test_inside_run_ranks_sizes_are_checked() -> None:
    run_ranks({"dp": 2}, _wrong)


MESHES = """
import os, sys
import torch
assert "mpi4py" not in sys.modules
from shardlab.comm import init
assert "mpi4py" not in sys.modules, "import shardlab.comm starts no MPI"
mesh = init()
assert mesh is init({"dp": 4}) is init({"dp": -1})
grid = init({"dp": 2, "tp": -1})
assert grid is init({"tp": 2, "dp": 2}) and grid is not mesh
assert grid["tp"].ranks == (mesh.rank // 2 * 2, mesh.rank // 2 * 2 + 1)
assert grid["dp", "tp"].ranks == (0, 1, 2, 3)
x = torch.ones(2)
mesh["dp"].all_reduce(x)
grid["tp"].all_reduce(x)
assert x.tolist() == [8.0, 8.0]
try:
    init({"dp": 3})
except ValueError as error:
    assert "mpirun -n 3" in str(error)
print(f"fine {mesh.rank} {torch.get_num_threads()}\\n", end="", flush=True)
"""


def test_meshes_under_mpirun(tmp_path: Path) -> None:
    ended = mpirun(tmp_path, 4, MESHES)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(ended.out.splitlines()) == [f"fine {rank} 1" for rank in range(4)]


def test_threads_share_the_cores_unless_told(tmp_path: Path) -> None:
    program = """
        import os, torch
        if os.environ["PMI_RANK"] == "1":
            os.environ.pop("OMP_NUM_THREADS")
        torch.set_num_threads(7)
        from shardlab.comm import init
        init()
        print(os.environ["PMI_RANK"], torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else
              torch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 2))
    """
    ended = mpirun(tmp_path, 2, program)
    assert sorted(ended.out.splitlines()) == ["0 7", "1 True"], ended.err
