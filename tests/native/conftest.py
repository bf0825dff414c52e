"""Both implementations under the public names."""

import pytest

from shardlab.native import kernels


@pytest.fixture(params=["compiled", "fallback"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.setattr(kernels, "_core", None)
    elif kernels._core is None:
        pytest.skip("the C++ module is not built")
    return request.param
