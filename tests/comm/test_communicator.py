"""The protocol, held against the backends: same names, same arguments, same defaults."""

import inspect

import pytest

from shardlab.comm import MAX, MIN, SUM, Communicator, Pending, ReduceOp
from shardlab.comm.base import BaseCommunicator
from shardlab.comm.dry import DryCommunicator
from shardlab.comm.lockstep import LockstepCommunicator, LockstepOperation
from shardlab.comm.operation import Operation

METHODS = [name for name, member in vars(Communicator).items() if inspect.isfunction(member) and name[0] != "_"]
BLOCKING = [name for name in METHODS if not name.startswith("start_")]


def arguments(cls: type, name: str) -> list[tuple[str, object]]:
    return [(p.name, p.default) for p in inspect.signature(getattr(cls, name)).parameters.values()]


def test_every_call_has_a_start_form_of_the_same_arguments() -> None:
    assert len(BLOCKING) == 8 and {f"start_{name}" for name in BLOCKING} == set(METHODS) - set(BLOCKING)
    for name in BLOCKING:
        assert arguments(Communicator, name) == arguments(Communicator, f"start_{name}")


@pytest.mark.parametrize("cls", [BaseCommunicator, LockstepCommunicator, DryCommunicator])
@pytest.mark.parametrize("name", METHODS)
def test_backends_take_the_arguments_of_the_protocol(cls: type, name: str) -> None:
    assert arguments(cls, name) == arguments(Communicator, name)


@pytest.mark.parametrize("cls", [Operation, LockstepOperation])
def test_operations_are_pending(cls: type) -> None:
    for name in ("wait", "done"):
        assert arguments(cls, name) == arguments(Pending, name)


def test_reductions_are_three() -> None:
    assert list(ReduceOp) == [SUM, MAX, MIN]
