"""The code that a module reaches by imports, hashed without comments, docstrings and layout.

What made a result is the code that its stage reaches, not all of it: ``docs/design/data-way.md``
says how it is found, and what is left out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = ("geo", "models", "pipeline")
#: What makes up the page of a report, and tables that modules read; counts where a module of its
#: room is reached.
_ASSETS = (".j2", ".css", ".js", ".json")
#: What the configuration asks the models goes into its values, which count as keys do.
_NOT_FOLLOWED = {"pipeline.config.": "models", "pipeline.responses.": "models"}
_MOST_FACTS = 5000  # of other versions of the files, before they are forgotten
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def cache_dir() -> Path:
    """Return the user's directory for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "disagg"


class SourceTree:
    """The modules of some packages, and what each imports.

    Parameters
    ----------
    places : mapping of str to Path
        Folder of each package.
    """

    def __init__(self, places: Mapping[str, Path]) -> None:
        texts: dict[str, bytes] = {}
        self._packages: set[str] = set()
        self._assets: dict[str, dict[str, str]] = {}
        for package, folder in places.items():
            for path in sorted(each for each in folder.rglob("*.*") if each.is_file()):
                parts = (package, *path.relative_to(folder).with_suffix("").parts)
                if path.suffix == ".py":
                    name = ".".join(parts).removesuffix(".__init__")
                    texts[name] = path.read_bytes()
                    if parts[-1] == "__init__":
                        self._packages.add(name)
                elif path.suffix in _ASSETS:
                    name = "/".join(parts) + path.suffix
                    self._assets.setdefault(_room(".".join(parts)), {})[name] = _digest(
                        path.read_bytes()
                    )
        facts = _facts(texts.values())
        self._facts = {name: facts[_digest(text)] for name, text in texts.items()}

    def reached(self, roots: Iterable[str]) -> set[str]:
        """Return the modules that some modules import, directly or not, with them."""
        found: set[str] = set()
        waiting = [name for name in roots if name in self._facts]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._imports(name)
        return found

    def _imports(self, name: str) -> Iterator[str]:
        if name in self._packages:  # a face collects names, and what is used has its own module
            return
        skipped = next((to for of, to in _NOT_FOLLOWED.items() if name.startswith(of)), None)
        for full in self._facts[name][1]:
            for other in (full, full.rpartition(".")[0]):
                if other in self._facts:
                    if other.partition(".")[0] != skipped:
                        yield other
                    break

    def hashes(self, roots: Iterable[str] | None = None) -> dict[str, str]:
        """Hash what some modules reach, or all modules.

        Returns
        -------
        dict of str to str
            16 hexadecimal digits for each room: ``geo``, ``models.gp``, ``pipeline.ingest``.
        """
        modules = self._facts if roots is None else self.reached(roots)
        rooms: dict[str, dict[str, str]] = {}
        for name in modules:
            rooms.setdefault(_room(name), {})[name] = self._facts[name][0]
        return {
            room: _digest(json.dumps(sorted((own | self._assets.get(room, {})).items())).encode())
            for room, own in sorted(rooms.items())
        }


@functools.cache
def own_sources(packages: tuple[str, ...] = PACKAGES) -> SourceTree:
    """Return some packages as they are installed, read once a process."""
    places = {}
    for package in packages:
        found = importlib.util.find_spec(package)
        for folder in (() if found is None else found.submodule_search_locations or ())[:1]:
            places[package] = Path(folder)
    return SourceTree(places)


def code_hash(*modules: str, packages: tuple[str, ...] = PACKAGES) -> str:
    """Hash the code of some packages that some modules reach: 16 hexadecimal digits."""
    tree = own_sources() if packages == PACKAGES else own_sources(packages)  # one tree a process
    return _digest(json.dumps(tree.hashes(modules)).encode())


def code_hashes() -> dict[str, str]:
    """Return the hash of each package."""
    rooms = own_sources().hashes().items()
    own = {package: [r for r in rooms if r[0].startswith(package)] for package in PACKAGES}
    return {package: _digest(json.dumps(found).encode()) for package, found in own.items()}


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _facts(texts: Iterable[bytes]) -> dict[str, Any]:
    """Return the hash of the code and the imports of each text, by its digest.

    To parse all modules takes seconds. What a text holds is known for good by its digest, so it is
    kept for the next process, of one minor version of Python: their trees differ.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = cache_dir() / f"sources-{version}.json"
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        known = json.loads(path.read_bytes())
    found = {}
    for text in texts:
        digest = _digest(text)
        found[digest] = known.get(digest) or _read(text)
    if not found.keys() <= known.keys():
        kept = found if len(known) > _MOST_FACTS else known | found
        with suppress(OSError):  # a user without a home reads them again
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}-{os.getpid()}")
            new.write_text(json.dumps(kept))
            new.replace(path)
    return found


def _read(text: bytes) -> tuple[str, list[str]]:
    """Return the hash of a module's code, and the full names that it imports."""
    tree, imports = ast.parse(text), set[str]()
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            imports.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.update(f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []  # never runs
        for body in _BODIES:
            inner = getattr(node, body, None)
            if isinstance(inner, list):  # not that of a lambda or a conditional expression
                inner[:] = [each for each in inner if not _is_text(each)]
                waiting += inner
    return _digest(ast.dump(tree).encode()), sorted(imports)


def _is_text(node: Any) -> bool:
    """Return whether a statement is text alone: a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)
