"""Which parameters are gathered and freed together when the user does not say.

    1. Every element of the outermost list of like modules (the blocks of a transformer) is a unit.
    2. Elsewhere, a module that owns parameters itself is a unit, with all below it that is in no such list.
    3. A parameter that two or more units reach (tied weights) is a unit of its own.

Rule 2 takes in what is below because such a module may read its children's weights without calling them, as
nn.MultiheadAttention does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["Reach", "UnitSpec", "find_units"]

_CONTAINERS = (nn.ParameterList, nn.ParameterDict)


@dataclass
class UnitSpec:
    """A unit to be: its name, the modules whose call needs it, its parameters by name."""

    name: str
    modules: list[nn.Module]
    params: dict[str, nn.Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class Reach:
    """A module that is a unit, and what it covers."""

    name: str
    module: nn.Module
    owners: tuple[nn.Module, ...]  # modules whose own parameters it covers


def find_units(model: nn.Module, units: Iterable[nn.Module | type[nn.Module]] | None = None) -> list[UnitSpec]:
    """Cut the parameters of ``model`` into units, in registration order; tied parameters come first.

    Args:
        units: modules, or classes of modules, that are to be units; what lies outside them follows rule 2. None: rule
            1.

    Raises:
        ValueError: a given module is not part of the model, or lies inside another given one.
    """
    names = {module: name for name, module in model.named_modules()}
    chosen = _listed(model) if units is None else _given(names, list(units))
    reaches = list(_reaches(model, "", chosen))
    found = [UnitSpec(reach.name or "model", [reach.module]) for reach in reaches]
    reached_by: dict[nn.Parameter, set[int]] = {}
    for at, reach in enumerate(reaches):
        for owner in reach.owners:
            for p in owner._parameters.values():
                if p is not None:
                    reached_by.setdefault(p, set()).add(at)
    tied = []
    for name, p in model.named_parameters():
        where = sorted(reached_by[p])
        if len(where) > 1:
            modules = dict.fromkeys(module for at in where for module in found[at].modules)
            tied.append(UnitSpec(name, list(modules), {name: p}))
        else:
            found[where[0]].params[name] = p
    return [unit for unit in tied + found if unit.params]


def _listed(model: nn.Module) -> set[nn.Module]:
    """Elements of the outermost lists of modules of one class; a Sequential of one module is no list."""
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> None:
        children = list(module.children())
        like = len({type(child) for child in children}) == 1
        several = isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and len(children) > 1)
        if several and like and not is_parametrized(module):
            found.update(child for child in children if any(True for _ in child.parameters()))
            return
        if not is_parametrized(module):
            for child in children:
                visit(child)

    visit(model)
    return found


def _given(names: dict[nn.Module, str], units: Sequence[nn.Module | type[nn.Module]]) -> set[nn.Module]:
    found: set[nn.Module] = set()
    for unit in units:
        if isinstance(unit, type):
            matching = {module for module in names if isinstance(module, unit)}
            if not matching:
                raise ValueError(f"units: the model has no module of class {unit.__name__}")
            found |= matching
        elif unit in names:
            found.add(unit)
        else:
            raise ValueError(f"units: {type(unit).__name__} is not a module of this model")
    for outer in found:
        for inner in outer.modules():
            if inner is not outer and inner in found:
                raise ValueError(f"units: {names[inner]!r} lies inside {names[outer]!r}; a parameter has one unit")
    return found


def _reaches(module: nn.Module, name: str, chosen: set[nn.Module]) -> Iterator[Reach]:
    """Walk in registration order; yield the modules that are units."""
    if module in chosen:
        yield Reach(name, module, tuple(_owners(module, set())))
    elif any(p is not None for p in module._parameters.values()) or is_parametrized(module) or _holds_lists(module):
        yield Reach(name, module, tuple(_owners(module, chosen)))
        yield from _below(module, name, chosen, inside=True)
    else:
        yield from _below(module, name, chosen, inside=False)


def _holds_lists(module: nn.Module) -> bool:
    return any(isinstance(child, _CONTAINERS) for child in module.children())


def _below(module: nn.Module, name: str, chosen: set[nn.Module], inside: bool) -> Iterator[Reach]:
    """Units below ``module``; ``inside`` a unit only chosen ones count."""
    for key, child in module.named_children():
        child_name = f"{name}.{key}" if name else key
        if not inside or child in chosen:
            yield from _reaches(child, child_name, chosen)
        else:
            yield from _below(child, child_name, chosen, inside=True)


def _owners(module: nn.Module, chosen: set[nn.Module]) -> Iterator[nn.Module]:
    """``module`` and all below it, without chosen modules and what is below those."""
    yield module
    for child in module.children():
        if child not in chosen:
            yield from _owners(child, chosen)
