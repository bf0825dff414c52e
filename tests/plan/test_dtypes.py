"""Element types by name."""

import pytest

from shardlab.plan import dtype_name, is_floating, itemsize


@pytest.mark.parametrize(
    ("given", "name", "size"),
    [
        ("torch.float32", "fp32", 4),
        ("float32", "fp32", 4),
        ("bfloat16", "bf16", 2),
        ("half", "fp16", 2),
        ("torch.float64", "fp64", 8),
        ("torch.float8_e4m3fn", "fp8", 1),
        ("torch.bool", "bool", 1),
        ("int64", "int64", 8),
    ],
)
def test_names_and_sizes(given: str, name: str, size: int) -> None:
    assert (dtype_name(given), itemsize(given)) == (name, size)


def test_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'bf15'.*did you mean 'bf16'"):
        dtype_name("bf15")


def test_floating() -> None:
    assert is_floating("bf16") and not is_floating("int8") and not is_floating("bool")
