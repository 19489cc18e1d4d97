"""The map of docs/architecture.md holds: imports point one way, and light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "skipinit"


def layers() -> list[set[str]]:
    """The chain of arrows in the document, lowest first."""
    (chain,) = [
        line for line in (ROOT / "docs" / "architecture.md").read_text().splitlines() if "  ←  " in line
    ]
    return [{part.strip() for part in layer.split(",")} for layer in chain.split("←")]


def part_of(module: tuple[str, ...]) -> str:
    """The folder below the package, or the single file."""
    return module[0] if module else ""


def level(part: str) -> int:
    """Where a part stands. Single files beside the folders are foundations, whether or not they are named."""
    for index, layer in enumerate(layers()):
        if part in layer:
            return index
    assert (PACKAGE / f"{part}.py").is_file(), f"{part} is not in the chain of docs/architecture.md"
    return 0


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of this package that a file imports, anywhere in it, as paths below the package."""
    home = path.relative_to(PACKAGE).parent.parts if path.is_relative_to(PACKAGE) else ()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = home[: len(home) - node.level + 1]
                yield from ((*base, *named, alias.name) for alias in node.names)
            elif named[:1] == ("skipinit",):
                yield from ((*named[1:], alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "skipinit":
                    yield tuple(alias.name.split(".")[1:])


# The package's own __init__ names the public API and __main__ starts the command line: both stand above.
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.stem.startswith("__")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    here = part_of(path.relative_to(PACKAGE).with_suffix("").parts)
    for module in imported(path):
        there = part_of(module)
        if there in ("", here, "__version__"):
            continue
        allowed = level(there) < level(here) or level(there) == level(here) == 0
        assert allowed, f"{here} may not import {there}"


def test_no_file_name_occurs_twice() -> None:
    """Commands are named after what they call."""
    paths = (ROOT / "src" / "skipinit").rglob("*.py")
    names = [path.name for path in paths if path.parent.name != "cli" and path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def test_the_walk_sees_imports() -> None:
    """So that the test above cannot pass by seeing nothing."""
    assert ("errors", "ConfigError") in imported(PACKAGE / "config.py")
    assert ("config", "ModelConfig") in imported(PACKAGE / "nets" / "schemes.py")
    assert ("nets", "architectures", "Architecture") in imported(PACKAGE / "nets" / "networks.py")


@pytest.mark.parametrize(
    "module",
    [
        "skipinit",
        "skipinit.config",
        "skipinit.nets.schemes",
        "skipinit.nets.architectures",
        "skipinit.converting.plan",
        "skipinit.data.catalog",
    ],
)
def test_light_modules_import_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'sklearn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_what_there_is(path: Path) -> None:
    """No test runs them, and a name that moved would be missed on the day of the measurement."""
    for *module, name in filter(None, imported(path)):
        home = import_module(".".join(("skipinit", *module)))
        part = hasattr(home, "__path__") and find_spec(f"{home.__name__}.{name}")
        assert part or hasattr(home, name), f"{home.__name__} has no {name}"


@pytest.mark.parametrize("name", ["skipinit", "skipinit.data"])
def test_public_names_exist(name: str) -> None:
    """And only they: the names that type checkers see are those that load."""
    package = import_module(name)
    assert all(getattr(package, public) is not None for public in package.__all__)
    tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    checked, _ = (node for node in tree.body if isinstance(node, ast.If))
    for_type_checkers = {alias.name for node in checked.body for alias in node.names}
    assert for_type_checkers == {*package._HOME} == {*package.__all__} - {"__version__"}
    (exported,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert ast.literal_eval(exported) == package.__all__, "mypy --strict takes other names as private"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
