"""The root distribution and the single packages say the same things, though each says them for itself."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.packaging.repository import GENERATED, ROOT, distributions, project

PACKAGES = distributions()
MAPPING = project(ROOT)["tool"]["scikit-build"]["wheel"]["packages"]


def third_party() -> dict[str, Requirement]:
    """What the single packages require of others; where two give a bound, the higher one."""
    strongest: dict[str, Requirement] = {}
    for folder in PACKAGES.values():
        for line in project(folder)["project"]["dependencies"]:
            requirement = Requirement(line)
            have = strongest.get(requirement.name)
            if have is None or bound(requirement) > bound(have):
                strongest[requirement.name] = requirement
    return {name: one for name, one in strongest.items() if not name.startswith("shardlab-")}


def bound(requirement: Requirement) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(requirement.specifier)))


def test_the_root_maps_every_package() -> None:
    expected = {
        f"shardlab/{name}": str((folder / "src/shardlab" / name).relative_to(ROOT)) for name, folder in PACKAGES.items()
    }
    assert expected == MAPPING
    assert all((ROOT / source / "__init__.py").is_file() for source in MAPPING.values())


def test_the_root_requires_what_its_parts_require() -> None:
    root = {Requirement(line).name: Requirement(line) for line in project(ROOT)["project"]["dependencies"]}
    assert root == third_party()


def test_the_root_has_the_commands_of_its_parts() -> None:
    scripts: dict[str, str] = {}
    for folder in PACKAGES.values():
        scripts |= project(folder)["project"].get("scripts", {})
    assert project(ROOT)["project"]["scripts"] == scripts
    assert set(scripts) == {"shardlab", "zsim"}


@pytest.mark.parametrize("name", list(PACKAGES))
def test_a_single_package_is_complete(name: str) -> None:
    folder, root = PACKAGES[name], project(ROOT)["project"]
    own = project(folder)["project"]
    assert own["name"] == f"shardlab-{name}"
    for key in ("version", "requires-python", "license"):
        assert own[key] == root[key], key
    assert (folder / "src/shardlab" / name / "py.typed").is_file()
    assert len((folder / own["readme"]).read_text(encoding="utf-8").splitlines()) <= 80  # one page


def test_constraints_pin_whatever_is_asked_for() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {Requirement(line).name for line in lines if line and not line.startswith("#")}
    extras = project(ROOT)["project"]["optional-dependencies"]
    asked = project(ROOT)["project"]["dependencies"] + [line for extra in extras.values() for line in extra]
    assert {Requirement(line).name for line in asked} == pins


def test_no_distribution_owns_the_namespace() -> None:
    owners = [path for path in ROOT.rglob("shardlab/__init__.py") if not GENERATED & set(path.relative_to(ROOT).parts)]
    assert owners == []


def test_every_test_folder_is_collected_by_path() -> None:
    # An __init__.py under tests would make two files of one name clash with importlib's mode of import.
    assert [path for path in Path(ROOT / "tests").rglob("__init__.py") if "__pycache__" not in path.parts] == []
