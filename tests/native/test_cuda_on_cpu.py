"""The CUDA source is executed: compiled as C++ with threads as fibers, it gives the bits of the fallback."""

import ctypes
import shutil
import subprocess
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from shardlab.native import fallback
from shardlab.native.fallback import AdamWNumbers

ROOT = Path(__file__).parents[2]
NONE, CODES = -1, {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
COMPILER = shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to compile the CUDA source as C++")


class Step(ctypes.Structure):
    """AdamWStep of include/shardlab/adamw.h: the same fields in the same order."""

    _fields_ = tuple((field.name, c_float) for field in fields(AdamWNumbers))


def compile_cuda_source(source: Path, target: Path) -> ctypes.CDLL:
    include = [f"-I{ROOT / folder}" for folder in ("tests/native", "native/include", "native/src/cuda")]
    # Two libraries in one process must not share the emulator's state.
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-gnu-unique", "-shared", "-fPIC", "-DSHARDLAB_CUDA_ON_CPU"]
    assert COMPILER is not None
    subprocess.run([COMPILER, "-x", "c++", *flags, *include, str(source), "-o", str(target)], check=True, timeout=120)
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = compile_cuda_source(ROOT / "native/src/cuda/kernels.cu", tmp_path_factory.mktemp("cuda") / "kernels.so")
    library.shardlab_cuda_sum_ranks.argtypes = [c_int, c_void_p, c_int64, c_void_p, c_int64, c_int, c_void_p]
    library.shardlab_cuda_cast.argtypes = [c_int, c_void_p, c_int, c_void_p, c_int64, c_int, c_void_p]
    moments_and_halves = [c_void_p] * 3 + [c_int, c_void_p] * 2
    library.shardlab_cuda_adamw.argtypes = [*moments_and_halves, c_int64, c_void_p, c_int, c_void_p]
    library.shardlab_cuda_error.restype = c_char_p
    return library


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = ROOT / "tests/native/cuda_on_cpu_check.cu"
    library = compile_cuda_source(source, tmp_path_factory.mktemp("check") / "check.so")
    library.error_text.restype = c_char_p
    return library


def same(x: Tensor, y: Tensor) -> bool:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return torch.equal(x.view(integer), y.view(integer))


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize("n", [1, 255, 3001])
def test_sum_ranks(cuda: ctypes.CDLL, dtype: torch.dtype, n: int) -> None:
    chunks = torch.randn(5, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(dtype)
    out, expected = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
    pointers = (c_void_p * 256)(*[row.data_ptr() for row in chunks])
    assert cuda.shardlab_cuda_sum_ranks(CODES[dtype], pointers, 5, out.data_ptr(), n, 0, None) == 0
    fallback.sum_ranks(list(chunks), expected)
    assert same(out, expected)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_cast(cuda: ctypes.CDLL, half: torch.dtype) -> None:
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-12, 6, 2000)
    narrow, expected, back = torch.empty(2000, dtype=half), torch.empty(2000, dtype=half), torch.empty(2000)
    assert cuda.shardlab_cuda_cast(0, x.data_ptr(), CODES[half], narrow.data_ptr(), 2000, 0, None) == 0
    fallback.cast(x, expected)
    assert same(narrow, expected)
    assert cuda.shardlab_cuda_cast(CODES[half], narrow.data_ptr(), 0, back.data_ptr(), 2000, 0, None) == 0
    assert same(back, expected.float())


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("copy_dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("decoupled", [True, False])
def test_adamw(cuda: ctypes.CDLL, grad_dtype: torch.dtype, copy_dtype: torch.dtype | None, decoupled: bool) -> None:
    n = 1234
    generator = torch.Generator().manual_seed(5)
    start, grad = torch.randn(n, generator=generator), torch.randn(n, generator=generator).to(grad_dtype)
    copies = [None if copy_dtype is None else torch.zeros(n, dtype=copy_dtype) for _ in range(2)]
    sets = [[start.clone(), torch.zeros(n), torch.zeros(n)] for _ in range(2)]
    for step in (1, 2):
        scalars = fallback.adamw_numbers(step, 1e-2, (0.9, 0.99), 1e-8, 0.1, decoupled)
        target = (NONE, None) if copy_dtype is None else (CODES[copy_dtype], copies[0].data_ptr())
        addresses = [x.data_ptr() for x in sets[0]]
        numbers = ctypes.byref(Step(**asdict(scalars)))
        source = (CODES[grad_dtype], grad.data_ptr())
        assert cuda.shardlab_cuda_adamw(*addresses, *source, *target, n, numbers, 0, None) == 0
        fallback.adamw(*sets[1], grad, scalars, copies[1])
    pairs = [*zip(*sets, strict=True), *([] if copy_dtype is None else [tuple(copies)])]
    assert all(same(x, y) for x, y in pairs)


def test_what_is_not_supported_is_an_error_code(cuda: ctypes.CDLL) -> None:
    x = torch.zeros(4)
    assert cuda.shardlab_cuda_cast(0, x.data_ptr(), 0, x.data_ptr(), 4, 0, None) != 0
    assert cuda.shardlab_cuda_cast(0, x.data_ptr(), 2, x.data_ptr(), 4, 7, None) == 101  # there is no device 7


def test_the_emulator_runs_shuffles_shared_memory_and_barriers(check: ctypes.CDLL) -> None:
    x, out = torch.arange(1000.0), torch.zeros(1)
    assert check.sum(c_void_p(x.data_ptr()), 1000, c_void_p(out.data_ptr())) == 0
    assert out.item() == 499500.0
    assert check.early_return(64) == 0  # all threads reach the barrier


def test_the_emulator_reports_barriers_that_not_all_threads_reach(check: ctypes.CDLL) -> None:
    assert b"not reached by threads that have returned" in check.error_text(check.early_return(40))
    assert b"some threads wait at __syncthreads and some at __syncwarp" in check.error_text(check.mixed())
    assert check.early_return(64) == 0  # an error does not stick
