"""Records of a long benchmark, a line each, so that it goes on where it ended."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pipeline.core.code import code_hashes

Record = dict[str, Any]


def hash_settings(*settings: Any, code: str | None = None) -> str:
    """Return a hash of all that decides a record: settings and code, all of ``models`` if none."""
    code = code_hashes()["models"] if code is None else code
    text = json.dumps([settings, code], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def source_hash_of(module: str, package: str) -> str:
    """Hash the code of a module and of all that it imports from a package, directly or not.

    Comments, docstrings and layout do not count, nor do the packages' ``__init__``, which only
    collect names. So a record stays valid while others change other models.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name], imported = _read_source(name, package)
            waiting += imported
    text = json.dumps(sorted(found.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@functools.cache
def _read_source(module: str, package: str) -> tuple[str, list[str]]:
    """Return a module's code and what it imports from a package; nothing of what is no module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or spec.origin.endswith("__init__.py"):
        return "", []
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return ast.dump(_without_docstrings(tree)), _imported(tree, package)


def _imported(tree: ast.Module, package: str) -> list[str]:
    """Return what a module imports from a package: modules, and names in it that are modules."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            if node.module.split(".")[0] == package and _is_package(node.module):
                found += [f"{node.module}.{each.name}" for each in node.names]
    return [name for name in found if name.split(".")[0] == package]


def _is_package(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


def read_records(path: Path, settings: str) -> dict[int, Record]:
    """Return the records of these settings by number; a line cut off by a stop is passed over."""
    found = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("settings") == settings:
            found[record["number"]] = record
    return found


def run_missing(
    measure: Callable[[int], Record],
    numbers: Sequence[int],
    path: Path,
    settings: str,
    n_worker: int = 1,
) -> list[Record]:
    """Measure the numbers that have no record yet; return the records of all.

    Parameters
    ----------
    measure : callable
        From a number to a record, in another process where there are workers.
    numbers : sequence of int
    path : Path
        A file of JSON lines.
    settings : str
        Lines of other settings do not count, and stay.
    n_worker : int
        Processes; 1 measures here.
    """
    found = read_records(path, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    missing = [number for number in numbers if number not in found]
    for number, record in _measured(measure, missing, n_worker):
        found[number] = {"settings": settings, "number": number, **record}
        ended = not path.is_file() or path.read_bytes()[-1:] in (b"", b"\n")
        with path.open("a") as file:
            file.write("\n" * (not ended) + json.dumps(found[number]) + "\n")
        done = sum(each in found for each in numbers)
        print(f"{path.stem}: {done} of {len(numbers)}", record.get("error", ""), flush=True)
    return [found[number] for number in numbers]


def _measured(
    measure: Callable[[int], Record], numbers: list[int], n_worker: int
) -> Iterator[tuple[int, Record]]:
    if n_worker <= 1:
        for number in numbers:
            yield number, measure(number)
        return
    with ProcessPoolExecutor(n_worker, get_context("spawn")) as pool:
        waiting = {pool.submit(measure, number): number for number in numbers}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
