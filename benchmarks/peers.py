"""Peers in the same run on the same inputs: what each says of countries whose truth is known.

    python -m benchmarks.peers [--grids 5] [--contestants NAME ...]
    python -m benchmarks.peers --picture

Countries of :mod:`benchmarks.grids`: 40 x 40 pixels of 1 km, 60 areas of 100 cases on average, a
factor of deviation .2 between areas, six covariates and people of each pixel; ``linear`` or
``bent`` effects and a Matern field. Contestants, with their settings in their docstrings:
:mod:`benchmarks.peer_maps` (ours by its defaults, a dense process, tobler, scikit-learn),
:mod:`benchmarks.peer_kriging` (pyinterpolate) and :mod:`benchmarks.peer_svgp` (GPyTorch,
GPflow). They need ``disagg[peers]``.

Each contestant and grid is a process of its own with one thread: ``seconds`` is its processor time
without imports, ``mebibytes`` its largest memory with them. A hash says that all were given the
same numbers; methods that conserve counts must give them back. The run ends with an error
otherwise. Records are kept in ``build/peers.jsonl``: the same command goes on where it ended, and
measures again what the file no longer has. Writes ``benchmarks/results/peers.json`` and draws
``docs/figures/peers.png``; ``--picture`` only draws.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grids import Design, simulate
from benchmarks.peer_answers import inputs, scores
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, read_results, wait_with_usage, write_results
from models.backend.blas import one_blas_thread

ROOT = Path(__file__).parents[1]
PATH, PICTURE = RESULTS / "peers.json", ROOT / "docs/figures/peers.png"
RECORDS = ROOT / "build/peers.jsonl"
DESIGNS = {
    truth: Design(truth, 60, cases=100.0, area_sd=0.2, n_side=40) for truth in ("linear", "bent")
}
N_GRID = 5
KEYS = (
    "correlation", "rmse", "rmse_log", "rmse_cases", "crps", "log_density", "coverage", "width",
    "total", "seconds", "mebibytes",
)  # fmt: skip
LEVEL = 0.9  # of the intervals
#: Of each score, a number that is the smaller the better.
WORSE = {
    "correlation": lambda value: -value,
    "rmse": lambda value: value,
    "crps": lambda value: value,
    "log_density": lambda value: -value,
    "coverage": lambda value: abs(value - LEVEL),
    "seconds": lambda value: value,
}
#: Distributions whose versions are told.
PEERS = ("tobler", "pyinterpolate", "torch", "gpytorch", "tensorflow", "gpflow", "scikit-learn")


@dataclass(frozen=True)
class Contestant:
    """A function that maps a grid, its name on pages, and the modules that it needs."""

    place: str
    words: str
    needs: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Where its function is."""
        return f"benchmarks.{self.place.partition(':')[0]}"


CONTESTANTS = {
    "disagg": Contestant("peer_maps:disagg", "disagg"),
    "exact_gp": Contestant("peer_maps:exact_gp", "dense process (Laplace)"),
    "gpflow": Contestant("peer_svgp:gpflow_svgp", "GPflow", ("gpflow", "tensorflow")),
    "gpytorch": Contestant("peer_svgp:gpytorch_svgp", "GPyTorch", ("gpytorch", "torch")),
    "gp_of_means": Contestant("peer_maps:gp_of_means", "scikit-learn process", ("sklearn",)),
    "forest": Contestant("peer_maps:random_forest", "scikit-learn forest", ("sklearn",)),
    "poisson": Contestant("peer_maps:poisson_regression", "scikit-learn Poisson", ("sklearn",)),
    "kriging": Contestant("peer_kriging:kriging", "pyinterpolate", ("pyinterpolate",)),
    "areal": Contestant("peer_maps:tobler_areal", "tobler, areal", ("tobler",)),
    "dasymetric": Contestant("peer_maps:tobler_dasymetric", "tobler, dasymetric", ("tobler",)),
    "pycnophylactic": Contestant(
        "peer_maps:tobler_pycnophylactic", "tobler, pycnophylactic", ("tobler",)
    ),
    "own_rate": Contestant("peer_maps:own_rate", "rate of the area"),
    "one_rate": Contestant("peer_maps:one_rate", "one rate"),
}
Case = tuple[str, str, int]  # contestant, design, grid


def measure(name: str, design: str, seed: int) -> dict[str, Any]:
    """Map a grid by one contestant, here, and score it."""
    contestant = CONTESTANTS[name]
    function = getattr(import_module(contestant.module), contestant.place.partition(":")[2])
    for each in contestant.needs:  # the libraries' imports are not what is timed
        import_module(each)
    with one_blas_thread():
        grid = simulate(DESIGNS[design], seed)
        given = inputs(grid)
        started = time.process_time()
        answer = function(grid)
        seconds = time.process_time() - started
        found = scores(answer, grid, np.random.default_rng([4, seed]))
    if inputs(grid) != given:
        raise SystemExit(f"error: {name} changed its inputs")
    return {"inputs": given, "seconds": seconds, **found}


def measured_apart(cases: list[Case], number: int) -> dict[str, Any]:
    """Measure a case in a process of its own; add its largest memory."""
    name, design, seed = cases[number]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        call = [name, design, str(seed), str(out)]
        code = f"from benchmarks.peers import child; child(*{call!r})"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, env=environment,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        usage = wait_with_usage(process)
        if process.returncode:
            raise SystemExit(f"error: {name} on {design} {seed} ended with {process.returncode}")
        record = json.loads(out.read_text())
    return {
        "contestant": name, "design": design, "grid": seed, **record,
        "mebibytes": usage.ru_maxrss / 1024,
    }  # fmt: skip


def child(name: str, design: str, seed: str, out: str) -> None:
    """Measure a case and write its record: the process of :func:`measured_apart`."""
    Path(out).write_text(json.dumps(measure(name, design, int(seed))))


def check_modules(names: list[str]) -> None:
    """End with one line where a contestant's library is missing."""
    needed = dict.fromkeys(each for name in names for each in CONTESTANTS[name].needs)
    if missing := [each for each in needed if find_spec(each) is None]:
        raise SystemExit(
            f"error: no module {', '.join(missing)}: pip install 'disagg[peers]', "
            "or name the others with --contestants"
        )


def check_inputs(records: list[dict[str, Any]]) -> None:
    """End with an error where contestants were not given the same numbers of a grid."""
    seen: dict[tuple[str, int], str] = {}
    for each in records:
        first = seen.setdefault((each["design"], each["grid"]), each["inputs"])
        if each["inputs"] != first:
            where = f"{each['design']} {each['grid']}"
            raise SystemExit(f"error: {each['contestant']} had other inputs on {where}")


def means(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the mean of each score over grids, by design and contestant."""
    table: dict[str, dict[str, dict[str, float | None]]] = {}
    for design, name in product(DESIGNS, CONTESTANTS):
        own = [r for r in records if (r["design"], r["contestant"]) == (design, name)]
        if own:
            table.setdefault(design, {})[name] = {
                key: None if any(r[key] is None for r in own) else mean([r[key] for r in own])
                for key in KEYS
            }
    return table


def mean(values: list[float]) -> float:
    """Return the mean."""
    return float(np.mean(values))


def ahead(table: dict[str, dict[str, float | None]], key: str, name: str = "disagg") -> list[str]:
    """Return the contestants that are better than one in a score, the best first."""
    worse = {
        each: WORSE[key](value) for each, row in table.items() if (value := row[key]) is not None
    }
    return sorted((each for each in worse if worse[each] < worse[name]), key=worse.__getitem__)


def draw(table: dict[str, dict[str, dict[str, float | None]]], path: Path) -> None:
    """Draw bars for a reader without statistics: means over the designs."""
    from matplotlib.figure import Figure

    names = [name for name in CONTESTANTS if all(name in rows for rows in table.values())]
    shown = {
        name: {
            key: None if None in values else mean(values)
            for key in ("rmse", "coverage", "seconds")
            for values in [[rows[name][key] for rows in table.values()]]
        }
        for name in names
    }
    panels = (
        ("How far off is the map in a place?\n% of the country's rate; shorter is better",
         "rmse", 100.0, "{:.0f} %"),
        ("It says: \"in 9 of 10 places the rate is in this range\".\nIn how many is it? "
         "Nearest to 90 % is best", "coverage", 100.0, "{:.0f} %"),
        ("Computing time of a map\nseconds; shorter is better", "seconds", 1.0, "{:.1f} s"),
    )  # fmt: skip
    names.sort(key=lambda name: -shown[name]["rmse"])
    figure = Figure((13, 0.32 * len(names) + 1.3), layout="constrained")
    words = [CONTESTANTS[name].words for name in names]
    colours = ["#1b6e6e" if name == "disagg" else "#b8bec4" for name in names]
    for number, (axes, panel) in enumerate(zip(figure.subplots(1, 3), panels, strict=True)):
        title, key, unit, text = panel
        values = [shown[name][key] for name in names]
        drawn = axes.barh(words, [unit * (value or 0.0) for value in values], color=colours)
        labels = ["says no range" if v is None else text.format(unit * v) for v in values]
        if key == "seconds":
            labels = [
                each if v >= 0.1 else "< 0.1 s" for each, v in zip(labels, values, strict=True)
            ]
        axes.bar_label(drawn, labels, padding=3, fontsize=9)
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.margins(x=0.2)
        axes.tick_params(labelleft=number == 0)
        if key == "coverage":
            axes.axvline(100.0 * LEVEL, color="#a03030", lw=1, ls="--")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure what has no record yet, check, write and draw."""
    asked = parsed(
        __doc__, grids=N_GRID, contestants=list(CONTESTANTS), picture=False, records=RECORDS
    )
    if asked.picture:
        draw(read_results(PATH)["means"], PICTURE)
        return
    check_modules(asked.contestants)
    cases = [
        (name, design, seed)
        for seed, design, name in product(range(asked.grids), DESIGNS, asked.contestants)
    ]
    settings = hash_settings({key: str(value) for key, value in DESIGNS.items()}, list(CONTESTANTS))
    numbers = {case: place for place, case in enumerate(all_cases())}
    every = list(numbers)
    chosen = [numbers[case] for case in cases]
    found = run_missing(functools.partial(measured_apart, every), chosen, asked.records, settings)
    drop = ("settings", "number")
    records = [{key: v for key, v in each.items() if key not in drop} for each in found]
    check_inputs(records)
    table = means(records)
    versions = {name: metadata.version(name) for name in PEERS if _installed(name)}
    write_results(PATH, {"versions": versions, "means": table, "records": records})
    draw(table, PICTURE)
    for design, rows in table.items():
        print(design)
        for name, row in rows.items():
            print(f"  {name:18}", {k: v if v is None else round(v, 3) for k, v in row.items()})


def all_cases() -> list[Case]:
    """Return every case of up to a thousand grids; its place is the number of its record."""
    return [
        (name, design, seed) for seed in range(1000) for design in DESIGNS for name in CONTESTANTS
    ]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
