"""What a small run does, counted: passes, flops, files opened, bytes. No clock.

    python -m benchmarks.guard            # prints the counts beside those on record
    python -m benchmarks.guard --write    # puts them on record, after a change that means them

Each stage of a country of 12 areas, some of more pixels than a fit's climb reads of one, runs twice
in this process, one thread, and the second time counts: by then everything is imported and
compiled. Then a country of nine areas and six months is fitted, predicted and updated with the
seventh, once. Counts are the same on any machine, or nearly; ``tests/benchmarks/test_guard.py``
fails where one is a tenth above the record.

* *passes*, *pixels*: visits of blocks of areas by the fit, those of few pixels included.
* *flops*, *exps*: of the products and exponentials of those visits and of predictions, from their
  shapes (:mod:`benchmarks.counting`).
* *opens*: of input files and of what stages hand on, by any library and process, as the kernel
  tells (inotify).
* *read*, *written*: bytes of all reads and writes of the process (``/proc/self/io``).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import struct
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks.counting import KEYS, counted
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.demo.months import SPECS, simulate_months
from pipeline.run.runner import run_stages
from pipeline.run.stages import STAGES

RECORD = Path(__file__).parents[1] / "tests/benchmarks/guard.json"
MOST = 1.1  # times the record
COVARIATES = ("elevation", "temperature")
SPEC = CountrySpec((50, 54), 1 / 12, 1500, 12, 6, 4e5, covariates=COVARIATES, n_inducing=8)
OF_MONTHS = CountrySpec((30, 34), 1 / 12, 500, 9, 4, 4e5, covariates=COVARIATES, n_inducing=8)
SETTINGS = {
    "workers: auto": "workers: 1",
    "folds: 5": "folds: 2",
    "draws: 500": "draws: 50",
    "schemes: [area, block]": "schemes: [area], calibration: none",
}
SETTINGS_OF_MONTHS = {
    "inducing: 60": "inducing: 8",
    "forecast: 3": "forecast: 1, draws: 50",
    "time:  ": "compute: {workers: 1}\nevaluate: {folds: 2}\ntime:  ",
}
IN_OPEN, IN_CLOSE, IN_CREATE, IN_ISDIR = 0x20, 0x18, 0x100, 0x40000000
Counts = dict[str, dict[str, float]]


class Opens:
    """Files of some folders that were opened, by name, whoever opened them.

    Openings and closings are both asked for: the kernel drops an event that equals the last one.

    Parameters
    ----------
    root : Path
        It and all folders in it, those made later included.
    """

    def __init__(self, root: Path) -> None:
        self.count: Counter[str] = Counter()
        self._root, self._libc = root, ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._place: dict[int, Path] = {}
        self._watch(root)
        self._marker = root / ".end"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Opens:
        """Begin to count."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait until all events before this have been read."""
        self._marker.touch()
        self._ended.wait(10)
        os.close(self._file)
        self._marker.unlink()

    def _watch(self, folder: Path) -> None:
        mask = IN_OPEN | IN_CLOSE | IN_CREATE
        for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            number = self._libc.inotify_add_watch(self._file, os.fsencode(each), mask)
            self._place[number] = each

    def _read(self) -> None:
        while not self._ended.is_set():
            data, at = os.read(self._file, 1 << 16), 0
            while at < len(data):
                number, mask, _, size = struct.unpack_from("iIII", data, at)
                name = data[at + 16 : at + 16 + size].rstrip(b"\0").decode()
                at += 16 + size
                self._take(number, mask, name)

    def _take(self, number: int, mask: int, name: str) -> None:
        path = self._place[number] / name if number in self._place else self._root
        if path == self._marker:
            self._ended.set()
        elif mask & IN_ISDIR:
            if mask & IN_CREATE:
                with contextlib.suppress(FileNotFoundError):
                    self._watch(path)
        elif mask & IN_OPEN:
            self.count[str(path.relative_to(self._root))] += 1


def io_bytes() -> tuple[int, int]:
    """Return the bytes that this process has read and written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    told = dict(line.split(": ") for line in lines)
    return int(told["rchar"]), int(told["wchar"])


def _set(config: Path, settings: Mapping[str, str]) -> None:
    """Change some settings of a configuration."""
    text = config.read_text(encoding="utf-8")
    for old, new in settings.items():
        if old not in text:
            raise SystemExit(f"the configuration of the demo no longer has {old!r}")
        text = text.replace(old, new)
    config.write_text(text, encoding="utf-8")


def small_country(directory: Path) -> Path:
    """Simulate the country; return its configuration."""
    config = simulate_country(directory, SPEC, seed=3)
    _set(config, SETTINGS)
    return config


def months_of_a_country(directory: Path) -> Path:
    """Simulate the country of months, the last of which is in ``later/``."""
    with mock.patch.dict(SPECS, small=OF_MONTHS):
        config = simulate_months(directory, 7, seed=3, n_later=1)
    _set(config, SETTINGS_OF_MONTHS)
    return config


def _counts(directory: Path, run: Callable[[], object]) -> tuple[dict[str, float], dict[str, int]]:
    """Return what a call does, and the files that it opens in a directory."""
    found: Counter[str] = Counter()

    def add(key: str, number: float) -> None:
        found[key] += round(number)

    with Opens(directory) as opens, counted(add):
        before = io_bytes()
        run()
        read, written = (now - then for now, then in zip(io_bytes(), before, strict=True))
    inputs = {file: n for file, n in opens.count.items() if not file.startswith("out")}
    counts = {
        **{key: float(found[key]) for key in KEYS},
        "opens": float(sum(opens.count.values())),
        "opens of inputs": float(sum(inputs.values())),
        "read": float(read),
        "written": float(written),
    }
    return counts, dict(sorted(opens.count.items()))


def measure(directory: Path) -> tuple[Counts, dict[str, dict[str, int]]]:
    """Run all stages, and once more with nothing changed.

    Returns
    -------
    counts : dict of dict of float
        By stage, and of the second run as ``unchanged``.
    opened : dict of dict of int
        By stage: files that were opened, inputs and what stages hand on, and how often.
    """
    # The cache of this user is written by other processes too, and read again when it is.
    os.environ["XDG_CACHE_HOME"] = str(directory.with_name("cache"))
    path = small_country(directory)
    counts: Counts = {}
    opened: dict[str, dict[str, int]] = {}
    config = load_config(path)
    for name in STAGES:
        run_stages(config, (name,), Silent())
    shutil.rmtree(config.output.dir)
    for name, stages in (*((each, (each,)) for each in STAGES), ("unchanged", tuple(STAGES))):
        run = partial(run_stages, load_config(path), stages, Silent())
        counts[name], opened[name] = _counts(directory, run)
    return counts, opened


def measure_months(directory: Path) -> Counts:
    """Fit, predict and update a country of months; evaluations and files are as of one period.

    Returns
    -------
    dict of dict of float
        By what was done.
    """
    path, counts = months_of_a_country(directory), {}
    run_stages(load_config(path), ("ingest",), Silent())
    for stage in ("fit", "predict"):
        run = partial(run_stages, load_config(path), (stage,), Silent())
        counts[f"months: {stage}"] = _counts(directory, run)[0]
    shutil.copytree(next((directory / "later").glob("20*")), directory, dirs_exist_ok=True)
    run = partial(
        run_stages, load_config(path), ("ingest", "fit", "predict"), Silent(), update="only"
    )
    counts["months: update"] = _counts(directory, run)[0]
    for found in counts.values():
        del found["read"]  # imports, where it is the first
    return counts


def risen(counts: Counts, record: Counts, most: float = MOST) -> list[str]:
    """Return a line for each count that has risen."""
    lines = []
    for stage, found in counts.items():
        for key, value in found.items():
            before = record.get(stage, {}).get(key, 0.0)
            if value > most * before:
                lines.append(f"{stage}, {key}: {value:,.0f}, and {before:,.0f} on record")
    return lines


def table(counts: Counts, record: Counts) -> str:
    """Return the counts as lines of text, with what is on record."""
    lines = []
    for stage, found in counts.items():
        for key, value in found.items():
            before = record.get(stage, {}).get(key, float("nan"))
            if value or before:
                lines.append(f"{stage:15} {key:16} {value:16,.0f} {before:16,.0f}")
    return "\n".join(lines)


def several(opened: Mapping[str, Mapping[str, int]]) -> str:
    """Return the files that a stage opens more than once, as lines of text."""
    return "\n".join(
        f"{stage:10} {n:4} {name}"
        for stage, files in opened.items()
        for name, n in sorted(files.items(), key=lambda each: -each[1])
        if n > 1
    )


def main() -> None:
    """Count, print, and write the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the counts on record")
    options = parser.parse_args()
    record: Counts = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    with tempfile.TemporaryDirectory() as directory:
        counts, opened = measure(Path(directory) / "country")
        counts |= measure_months(Path(directory) / "months")
    print(f"{'stage':15} {'count':16} {'now':>16} {'on record':>16}\n{table(counts, record)}")
    print(f"\nopened more than once in a stage:\n{several(opened)}")
    if options.write:
        RECORD.write_text(json.dumps(counts, indent=1) + "\n")
    elif lines := risen(counts, record):
        raise SystemExit("risen by more than a tenth:\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
