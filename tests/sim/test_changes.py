"""When it does not fit: changes that do, each minimal, cheapest first."""

from dataclasses import replace
from typing import Any

from shardlab.sim import Estimate, estimate
from shardlab.sim.request import Request, resolve


def ask(**changes: Any) -> Estimate:
    return estimate(**{"model": "llama3-8b", "gpus": 8, "device": "a100-80g", "seq": 4096, **changes})


def test_every_change_fits_when_asked_for() -> None:
    found = ask(micro_batch=8, zero=0)
    assert not found.fits and 1 <= len(found.changes) <= 3
    for change in found.changes:
        again = ask(**{"micro_batch": 8, "zero": 0, **change["flags"]})
        assert again.fits and again.memory.allocated == change["allocated_bytes"]
        assert again.times is not None and again.times.step == change["step_s"]


def test_fewer_devices_come_first_then_less_time_per_sample() -> None:
    found = ask(micro_batch=8, zero=0).changes
    keys = [(change["gpus"], change["step_s"] / change["global_batch"]) for change in found]
    assert keys == sorted(keys)


def test_a_smaller_micro_batch_keeps_the_global_batch() -> None:
    for change in ask(micro_batch=8, zero=3).changes:
        if "micro_batch" in change["flags"] and "gpus" not in change["flags"]:
            assert change["flags"]["global_batch"] == change["global_batch"] == 64


def test_a_bare_count_is_sharded_further() -> None:
    found = ask(model="7.5e9", gpus=64, device="v100-32g")
    assert [change["flags"] for change in found.changes] == [{"zero": 1}, {"zero": 2}, {"zero": 3}]


def test_more_devices_where_nothing_else_helps() -> None:
    found = ask(model="100e9", zero=3, device="v100-16g")
    (change,) = found.changes
    assert list(change["flags"]) == ["gpus", "global_batch"] and change["gpus"] == 128


def test_no_change_when_it_fits() -> None:
    assert ask(model="gpt2", seq=1024).changes == ()


def test_nothing_is_promised_where_nothing_helps() -> None:
    resolved = resolve(Request("1e9", 1, "a100-80g"))
    tiny = replace(resolved.machine, memory_bytes=replace(resolved.machine.memory_bytes, value=1.0))
    assert estimate("1e9", gpus=1, device=tiny).changes == ()
