"""Records of a long benchmark, a line each, so that it goes on where it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pipeline.core.sources import code_hashes

Record = dict[str, Any]


def hash_settings(*settings: Any, code: str | None = None) -> str:
    """Return a hash of all that decides a record: settings and code, all of ``models`` if none."""
    code = code_hashes()["models"] if code is None else code
    text = json.dumps([settings, code], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


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
