"""The shape of the tree: no circle of modules, and every room says what it is for."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "pipeline", "models", "geo")


@cache
def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path) -> set[str]:
    """Return what a module imports, also inside functions and under TYPE_CHECKING.

    Imports are absolute: ruff's TID252 refuses relative ones.
    """
    named, modules = [], _modules()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            named += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{each.name}" for each in node.names]
            named += [name if name in modules else node.module for name in inner]
    return {name for name in named if name in modules}


@cache
def _layers(package: str) -> list[set[str]]:
    """Return the layers of a package, the highest first, as the contract names them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        each
        for each in settings["tool"]["importlinter"]["contracts"]
        if each.get("containers") == [package]
    )
    return [set(layer.split(" | ")) for layer in contract["layers"]]


def _floor(package: str, room: str) -> int:
    return next(n for n, layer in enumerate(_layers(package)) if room in layer)


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle, or nothing."""
    done: set[str] = set()

    def visit(module: str, above: list[str]) -> list[str]:
        if module in above:
            return [*above[above.index(module) :], module]
        if module in done:
            return []
        for other in sorted(arrows[module]):
            found = visit(other, [*above, module])
            if found:
                return found
        done.add(module)
        return []

    return next((found for module in sorted(arrows) if (found := visit(module, []))), [])


@pytest.mark.ci
def test_no_circle_of_modules() -> None:
    modules = _modules()
    assert len(modules) > 150
    arrows = {name: _imports(path) - {name} for name, path in modules.items()}
    assert _circle(arrows) == []


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("package", ["pipeline", "models", "geo"])
def test_no_room_imports_through_the_face_of_its_package(package: str) -> None:
    """``from pipeline import fit`` in a low room would import a high one unseen."""
    for path in (ROOT / package).glob("*/**/*.py"):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module == package:
                rooms = {each.name for each in node.names}
                assert rooms <= {p.parent.name for p in (ROOT / package).glob("*/__init__.py")}
            if isinstance(node, ast.Import):
                assert package not in [each.name for each in node.names], path


def test_a_room_says_what_it_is_for_and_what_it_may_import() -> None:
    rooms = [
        path.parent
        for package in ("pipeline", "models", "geo")
        for path in (ROOT / package).glob("*/__init__.py")
    ]
    for room in rooms:
        text = ast.get_docstring(_tree(room / "__init__.py"))
        assert text is not None, room
        what, _, imports = text.partition("\n\n")
        assert what.endswith("."), room
        package, own = room.parts[-2:]
        below = set().union(*_layers(package)[_floor(package, own) + 1 :])
        assert set(re.findall(rf"{package}\.(\w+)", imports)) <= below, room
        if "no other room" in imports:
            others = {name.split(".")[1] for path in room.rglob("*.py") for name in _imports(path)
                      if name.startswith(f"{package}.")}  # fmt: skip
            assert others <= {own}, room


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_have_500_lines_at_most(package: str) -> None:
    long = {
        path.relative_to(ROOT).as_posix(): n
        for path in (ROOT / package).rglob("*.py")
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert long == {}


def test_tests_mirror_the_rooms() -> None:
    for package in ("pipeline", "models", "geo"):
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        folders = {p.name for p in (ROOT / "tests" / package).iterdir() if p.is_dir()}
        assert rooms <= folders
        assert folders - {"__pycache__"} <= rooms
