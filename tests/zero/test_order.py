from hypothesis import given
from hypothesis import strategies as st

from shardlab.zero.order import UseOrder
from shardlab.zero.unit import Unit

A, B, C = UNITS = [Unit(name, []) for name in "abc"]
PASSES = st.lists(st.sampled_from(UNITS), min_size=1, max_size=12)


def follow(order: UseOrder, units: list[Unit], training: bool = True) -> list[Unit | None]:
    """What is predicted at each use of one pass."""
    order.begin(training)
    predicted = [order.use(unit) for unit in units]
    order.end()
    return predicted


def test_the_first_pass_predicts_nothing() -> None:
    assert follow(UseOrder(), [A, B, C]) == [None, None, None]


@given(PASSES)
def test_a_pass_like_the_last_is_predicted(units: list[Unit]) -> None:
    order = UseOrder()
    follow(order, units)
    assert follow(order, units) == [*units[1:], None]


def test_a_pass_that_leaves_the_order_is_predicted_no_further() -> None:
    order = UseOrder()
    follow(order, [A, B, C])
    assert follow(order, [A, C, B, C]) == [B, None, None, None]
    assert follow(order, [A, C, B, C]) == [C, B, C, None]


def test_training_and_evaluation_have_orders_of_their_own() -> None:
    order = UseOrder()
    follow(order, [A, B, C, C, B, A])
    follow(order, [A, B, C], training=False)
    assert follow(order, [A, B, C, C, B, A]) == [B, C, C, B, A, None]
    assert follow(order, [A, B, C], training=False) == [B, C, None]


def test_an_evaluation_inside_a_training_pass_ends_it() -> None:
    order = UseOrder()
    follow(order, [A, B])
    order.begin(True)
    assert order.use(A) is B
    follow(order, [C], training=False)
    order.begin(True)
    assert order.use(A) is None, "the pass that ended early is the last one"


@given(PASSES, PASSES)
def test_a_prediction_is_what_came_next_in_the_last_pass(first: list[Unit], second: list[Unit]) -> None:
    order = UseOrder()
    follow(order, first)
    for at, predicted in enumerate(follow(order, second)):
        if predicted is not None:
            assert first[: at + 1] == second[: at + 1]
            assert predicted is first[at + 1]
