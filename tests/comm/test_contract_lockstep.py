"""The contract on lockstep ranks."""

from collections.abc import Callable

import pytest

from shardlab.comm import Mesh, run_ranks
from tests.comm.contract import CONTRACT, SUBGROUPS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("fn", CONTRACT, ids=lambda fn: fn.__name__)
def test_contract(fn: Callable[[Mesh], None], size: int) -> None:
    assert run_ranks({"dp": size}, fn) == [None] * size


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fn", SUBGROUPS, ids=lambda fn: fn.__name__)
def test_contract_of_subgroups(fn: Callable[[Mesh], None], seed: int) -> None:
    assert run_ranks({"pp": 2, "dp": 2}, fn, seed=seed) == [None] * 4


@pytest.mark.parametrize("fn", CONTRACT, ids=lambda fn: fn.__name__)
def test_contract_within_a_larger_mesh(fn: Callable[[Mesh], None]) -> None:
    assert run_ranks({"dp": 3, "tp": 2}, fn) == [None] * 6
