from collections.abc import Sequence

class AdamWStep:
    def __init__(
        self,
        *,
        beta2: float,
        one_minus_beta1: float,
        one_minus_beta2: float,
        eps: float,
        step_size: float,
        sqrt_bias_correction2: float,
        decay: float,
        l2: float,
    ) -> None: ...

def device_count() -> int: ...
def sum_ranks(dtype: int, chunks: Sequence[int], out: int, n: int, device: int, stream: int, /) -> None: ...
def cast(from_dtype: int, source: int, to_dtype: int, target: int, n: int, device: int, stream: int, /) -> None: ...
def adamw(
    p: int,
    m: int,
    v: int,
    grad_dtype: int,
    grad: int,
    copy_dtype: int,
    copy: int,
    n: int,
    step: AdamWStep,
    device: int,
    stream: int,
    /,
) -> None: ...
