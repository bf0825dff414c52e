import pytest
from torch import nn
from torch.nn.utils import parametrizations

from shardlab.zero.units import UnitSpec, find_units
from tests.models import GPT, MLP, TASKS, Block, ConvNet


def names(units: list[UnitSpec]) -> list[str]:
    return [unit.name for unit in units]


def assert_each_parameter_once(model: nn.Module, units: list[UnitSpec]) -> None:
    found = [p for unit in units for p in unit.params.values()]
    assert len(found) == len(set(found))
    assert set(found) == set(model.parameters())
    for unit in units:
        for name, p in unit.params.items():
            assert dict(model.named_parameters())[name] is p


def test_blocks_are_units_and_a_tied_parameter_comes_first() -> None:
    model = GPT()
    units = find_units(model)
    assert names(units) == ["tok.weight", "pos", "blocks.0", "blocks.1", "blocks.2", "norm"]
    assert units[0].modules == [model.tok, model.out]
    assert len(units[2].params) == 12
    assert_each_parameter_once(model, units)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "hf_gpt2",
            ["transformer.wte.weight", "transformer.wpe", "transformer.h.0", "transformer.h.1", "transformer.ln_f"],
        ),
        ("hf_llama", ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]),
        ("hf_qwen2", ["model.embed_tokens.weight", "model.layers.0", "model.layers.1", "model.norm"]),
    ],
)
def test_hugging_face(model: str, expected: list[str]) -> None:
    made = TASKS[model].build()
    assert names(find_units(made)) == expected
    assert_each_parameter_once(made, find_units(made))


def test_without_a_list_of_like_modules_the_owners_are_units() -> None:
    assert names(find_units(ConvNet(norm=True))) == ["first", "norm", "second", "head"]
    assert names(find_units(MLP())) == ["layers.0", "layers.2", "layers.4"]


def test_only_the_outermost_list_counts() -> None:
    inner = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(3)]
    assert names(find_units(nn.Sequential(*inner))) == ["0", "1", "2"]


def test_an_owner_takes_what_is_below_it() -> None:
    """nn.MultiheadAttention reads the weights of its `out_proj` without calling it."""
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.LayerNorm(4))
    units = find_units(model)
    assert names(units) == ["0", "1"]
    assert "0.out_proj.weight" in units[0].params


def test_an_owner_leaves_the_blocks_below_it() -> None:
    class Owner(GPT):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(self.tok.weight.new_ones(()))

    model = Owner()
    units = find_units(model)
    assert names(units) == ["model", "blocks.0", "blocks.1", "blocks.2"]
    assert set(units[0].params) == {"scale", "tok.weight", "pos.weight", "norm.weight", "norm.bias"}
    assert_each_parameter_once(model, units)


@pytest.mark.parametrize("container", [nn.ParameterList, nn.ParameterDict])
def test_who_holds_a_list_of_parameters_owns_them(container: type[nn.Module]) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weights = {"a": nn.Parameter(nn.Linear(2, 2).weight.detach())}
            self.held = container(weights if container is nn.ParameterDict else weights.values())

    model = nn.ModuleDict({"one": Holder(), "two": nn.Linear(2, 2)})
    assert names(find_units(model)) == ["one", "two"]


def test_a_parametrized_module_is_one_unit() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)), nn.ReLU(), nn.Linear(3, 2))
    units = find_units(model)
    assert names(units) == ["0", "2"]
    assert len(units[0].params) == 3
    assert_each_parameter_once(model, units)


def test_units_that_are_given() -> None:
    model = GPT()
    by_class = find_units(model, [Block])
    assert names(by_class) == ["tok.weight", "pos", "blocks.0", "blocks.1", "blocks.2", "norm"]
    by_module = find_units(model, [model.blocks])
    assert names(by_module) == ["tok.weight", "pos", "blocks", "norm"]
    assert names(find_units(model, [model])) == ["model"]
    for units in (by_class, by_module):
        assert_each_parameter_once(model, units)


def test_units_that_cannot_be() -> None:
    model = GPT()
    with pytest.raises(ValueError, match="the model has no module of class Conv2d"):
        find_units(model, [nn.Conv2d])
    with pytest.raises(ValueError, match="Linear is not a module of this model"):
        find_units(model, [nn.Linear(1, 1)])
    with pytest.raises(ValueError, match=r"'blocks.0' lies inside 'blocks'"):
        find_units(model, [model.blocks, model.blocks[0]])


def test_a_module_without_parameters_makes_no_unit() -> None:
    assert names(find_units(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Identity()))) == ["0"]


def test_a_list_of_one_block_is_a_list() -> None:
    """A one-layer model is cut as a deeper one; a Sequential of one module is looked through."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

    model = nn.Module()
    model.blocks = nn.ModuleList([block()])
    model.head = nn.Sequential(block())
    assert [unit.name for unit in find_units(model)] == ["blocks.0", "head.0.0", "head.0.2"]
