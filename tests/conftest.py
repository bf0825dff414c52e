"""Fixtures for tests on real MPI ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ranks.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The pool of this pytest worker."""
    ranks = Pool()
    yield ranks
    ranks.stop()


@pytest.fixture
def mpi_ranks(pool: Pool) -> Callable[..., Callable[..., list[Any]]]:
    """``mpi_ranks(n)(fn, *args)`` gives what fn(mesh, *args) returns, by rank; ``n`` or axes, as {"dp": 2, "tp": 2}."""

    def of(axes: int | dict[str, int]) -> Callable[..., list[Any]]:
        shape = {"dp": axes} if isinstance(axes, int) else axes
        return lambda fn, *args, **options: pool.run(shape, fn, *args, **options)

    return of
