"""Against PyTorch's own data parallelism: other sums in another order, the same training."""

import pytest

from tests.oracle.recipe import Outcome, Recipe, largest_difference
from tests.oracle.torch_parallel import judged
from tests.zero.training import lockstep

RECIPES = {
    "sgd": Recipe("gpt", "sgd", steps=5, micro_batches=2, clip=0.3),
    "adamw": Recipe("gpt", "adamw", (("lr", 1e-3), ("eps", 1e-5)), steps=5, micro_batches=2, clip=0.3, groups=True),
}
JUDGES = {"ddp": 0, "fsdp2": 3}  # and our stage of the same kind


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Outcome]]:
    names = [(judge, name) for judge in JUDGES for name in RECIPES]
    jobs = [(judge, RECIPES[name]) for judge, name in names]
    return dict(zip(names, judged(tmp_path_factory.mktemp("gloo"), 2, jobs), strict=True))


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", RECIPES)
def test_same_training(verdicts: dict[tuple[str, str], list[Outcome]], judge: str, name: str) -> None:
    ours = lockstep(RECIPES[name], 2, JUDGES[judge])
    for a, b in zip(ours, verdicts[judge, name], strict=True):
        largest = max(grad.abs().max().item() for grad in b.grads.values())
        assert largest_difference(a.grads, b.grads) <= 2e-6 * largest
        assert largest_difference(a.params, b.params) <= 1e-6
        assert a.norms == pytest.approx(b.norms, rel=1e-6)
