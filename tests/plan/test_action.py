"""The text of actions, both ways, and PyTorch as a reader of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.plan import Action, Op, lane_of

actions = st.builds(
    Action,
    st.sampled_from(Op),
    st.integers(0, 99),
    st.none() | st.integers(0, 999),
    st.sampled_from(["", "embed.tok.weight", "blocks.12", "layers.0"]),
    st.integers(0, 3),
)


@given(actions)
def test_text_both_ways(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(st.lists(actions, max_size=9))
def test_distinct_actions_have_distinct_texts(found: list[Action]) -> None:
    assert len({str(a) for a in found}) == len(set(found))


def test_examples() -> None:
    assert str(Action(Op.F, 2, 0)) == "2F0"
    assert str(Action(Op.GATHER, 0, 0, "embed.tok.weight", 1)) == "0UNSHARD0@embed.tok.weight#1"
    assert str(Action(Op.STEP, 0)) == "0STEP"


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F0@", "2F0 B1", "2F0#x"])
def test_what_is_no_action(text: str) -> None:
    with pytest.raises(ValueError, match="want <stage><op>"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["2F0", "0B3", "1I2", "1W2", "3SEND_F1", "3RECV_B1", "1UNSHARD", "1RESHARD"])
def test_pytorch_reads_the_same_text(text: str) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    theirs = schedules._Action.from_str(text)
    assert str(theirs) == str(Action.parse(text)) == text


def test_lanes() -> None:
    assert [lane_of(op) for op in (Op.F, Op.FREE, Op.STEP, Op.GATHER, Op.REDUCE, Op.ALLREDUCE, Op.SEND_F)] == [
        "compute", "compute", "compute", "gather", "reduce", "reduce", "peer"]  # fmt: skip
