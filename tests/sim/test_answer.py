"""The answer: contract of the JSON, and sums that must agree."""

import json
from typing import Any

import pytest

from shardlab.plan import compile_plan, wire_bytes
from shardlab.sim import RequestError, estimate
from shardlab.sim.answer import step_times, step_wire_bytes
from shardlab.sim.cost import Cost
from shardlab.sim.replay import replay, times
from tests.plan.plans import make
from tests.sim.machine import round_machine

PARTS = ["parameters", "gradients", "optimizer", "activations", "gathered", "buffers", "padding"]


def ask(**changes: Any) -> dict[str, Any]:
    given = {"model": "gpt2", "gpus": 8, "device": "a100-80g", "zero": 3, "micro_batch": 4, **changes}
    return estimate(**given).to_dict()


def test_contract_of_the_json() -> None:
    found = ask()
    assert list(found) == ["schema", "verdict", "inputs", "result", "assumptions"]
    assert (found["schema"], found["verdict"]) == ("shardlab.estimate/1", "fits")
    result = found["result"]
    assert list(result["memory"]["per_rank_bytes"]) == [*PARTS, "allocated", "reserved"]
    assert result["memory"]["stages"] == [{"stage": 0, "per_rank_bytes": result["memory"]["per_rank_bytes"]}]
    assert list(result["time_s"]) == ["step", "compute", "exposed_communication", "optimizer"]
    assert list(result["throughput"]) == [
        "tokens_per_s", "tokens_per_s_per_gpu", "model_flops_per_s_per_gpu", "mfu"]  # fmt: skip
    assert list(result["wire_bytes"]) == ["dp"] and "changes" not in result
    assert all(isinstance(sentence, str) and sentence for sentence in found["assumptions"])
    assert json.loads(json.dumps(found)) == found


def test_sums_agree() -> None:
    result = ask()["result"]
    needed = result["memory"]["per_rank_bytes"]
    assert needed["allocated"] == sum(needed[name] for name in PARTS) <= needed["reserved"]
    spent, speed = result["time_s"], result["throughput"]
    assert spent["step"] == pytest.approx(spent["compute"] + spent["exposed_communication"] + spent["optimizer"])
    assert speed["tokens_per_s"] == pytest.approx(8 * 4 * 1024 / spent["step"])
    assert speed["tokens_per_s_per_gpu"] == pytest.approx(speed["tokens_per_s"] / 8)
    assert speed["mfu"] == pytest.approx(speed["model_flops_per_s_per_gpu"] / 312e12)
    assert 0 < speed["mfu"] < 1
    parts = result["model"]["parameters_by_part"]
    assert sum(parts.values()) == result["model"]["parameters"] == 124_439_808


def test_same_question_same_answer() -> None:
    assert ask() == ask()


def test_a_bare_count_has_no_time_and_no_wire() -> None:
    result = ask(model="7.5e9")["result"]
    assert "time_s" not in result and "wire_bytes" not in result and "throughput" not in result


def test_a_device_without_the_dtype_has_memory_but_no_time() -> None:
    found = ask(device="v100-32g", precision="bf16")
    assert "time_s" not in found["result"] and found["result"]["wire_bytes"]["dp"] > 0
    assert any("has no units for bf16" in sentence for sentence in found["assumptions"])
    assert "time_s" in ask(device="v100-32g", precision="fp16")["result"]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_later_micro_batches_repeat_the_second(zero: int) -> None:
    plan = make("llama", dp=4, zero=zero, accumulation=5)
    cost = Cost(plan, round_machine(), 1)
    assert step_wire_bytes(plan) == wire_bytes(compile_plan(plan), plan)
    whole, extended = times(replay(compile_plan(plan), cost)), step_times(cost)
    assert extended.compute == pytest.approx(whole.compute)
    assert extended.optimizer == pytest.approx(whole.optimizer)
    assert extended.step == pytest.approx(whole.step, rel=0.01)


def test_one_rank_sends_nothing() -> None:
    assert ask(gpus=1)["result"]["wire_bytes"] == {"dp": 0}


def test_faulty_arguments() -> None:
    with pytest.raises(RequestError, match="unexpected keyword argument 'colour'"):
        ask(colour="red")
