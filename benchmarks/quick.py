"""A few minutes that say whether benchmarks still compare what they say.

    python -m benchmarks.quick [--checks NAME ...] [--out build/quick]

Small settings of benchmarks that set two computations of the same thing side by side; each check
gives figures and what is wrong with them. Nothing of ``benchmarks/results`` or ``docs`` is written.
Speed is no part of it: figures go to ``OUT/quick.json``, and the command ends with an error where a
check finds something. Whether a run does more work than before: ``python -m benchmarks.guard``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    blrt,
    distances,
    evidence,
    mil_page,
    mil_papers,
    pairs,
    peers,
    performance,
    sbc,
    sbc_months,
    sbc_page,
    speed,
    swiss_roll_page,
    trust,
)
from benchmarks.designs import default_model
from benchmarks.exact_areas import ExactAreas
from benchmarks.grids import Design, simulate
from benchmarks.plain_trees import grow_plain, predict_plain
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models import BLRT
from models.backend.blas import one_blas_thread

Figures = dict[str, Any]
Found = tuple[Figures, list[str]]
NODES_ERROR = 0.03  # of a variance by 512 nodes
NEAR_ERROR = 2e-4  # of chords of up to 300 km
SAME_MAP, AS_FAR = 0.98, 0.2  # correlation of log rates, and their root mean squared difference
AS_SCORED = 0.02  # of a correlation, and of a continuous ranked probability score
TREES = 5


def passes() -> Found:
    """Values and gradients of a pass over pixels, and PyTorch's."""
    found = speed.measure(3000, 60, 100, 1)  # ends with an error where they differ
    torch = "worst_difference" in found["float64"]["step"]
    return {"float64": found["float64"], "beside PyTorch": torch}, []


def variances() -> Found:
    """Variances of a bag's sum by quadrature nodes, and by all pairs of pixels."""
    rows = pairs.measure(1500, 60, 2)["ways"]
    errors = {name: rows[f"{name} 512 nodes"]["error"] for name in ("square", "exp")}
    wrong = [f"{name}: off by {e:.1%}" for name, e in errors.items() if not e < NODES_ERROR]
    return errors, wrong


def positions() -> Found:
    """Distances of positions, and those along the ellipsoid."""
    with np.errstate(invalid="ignore"):
        found = distances.errors(distances.PLACES["Madagascar"])["chord"]
    near = found["largest_near"]
    return found, [] if near < NEAR_ERROR else [f"chords of up to 300 km are off by {near:.2g}"]


def surfaces() -> Found:
    """Means of a map, and of a dense one that is integrated by quadrature."""
    grid = simulate(Design("linear", 30, 100.0, 0.2, n_side=20), 0)
    exact = ExactAreas(grid)
    theirs = np.log(exact.weight @ np.exp(exact.mean + 0.5 * exact.sd**2))
    model = default_model(grid, {"kernel": "linear + matern32(space)"})
    ours = np.log(model.fit(grid.bags(), n_thread=1).predict_pixels(grid.x, grid.coords).mean)
    agree = float(np.corrcoef(ours, theirs)[0, 1])
    apart = float(np.std(ours - theirs))
    wrong = [] if agree > SAME_MAP and apart < AS_FAR else [f"{agree:.3f} alike, {apart:.3f} off"]
    return {"correlation": agree, "apart": apart}, wrong


def contestants() -> Found:
    """Other software on one grid, where it is installed: scores are those of ``peers.json``."""
    records = read_results(RESULTS / "peers.json")["records"]
    known = {(r["contestant"], r["design"], r["grid"]): r for r in records}
    found, wrong, inputs = {}, [], set()
    for name, each in peers.CONTESTANTS.items():
        if any(find_spec(module) is None for module in each.needs):
            found[name] = "not installed"
            continue
        row, before = peers.measure(name, "linear", 0), known[name, "linear", 0]
        inputs.add(row["inputs"])
        found[name] = {key: row[key] for key in ("correlation", "crps")}
        for key, value in found[name].items():
            if value is not None and not abs(value - before[key]) < AS_SCORED:
                wrong.append(f"{name}: {key} is {value:.3f}, on record {before[key]:.3f}")
    return found, wrong + ["inputs differ between them"] * (len(inputs) > 1)


def trees() -> Found:
    """Compiled trees, and Algorithm 1 in plain NumPy, from the same seeds."""
    bags = blrt.simulated(30, 6, 5)
    model = BLRT(n_trees=TREES, n_features=3, n_thresholds=5, seed=3).fit(bags)
    seeds = np.random.SeedSequence(3).generate_state(TREES, np.uint64)
    told, off = model.predict_bags(bags).draws, 0.0
    for tree, seed in enumerate(seeds):
        x, offsets, y = bags.x, bags.offsets, bags.y
        nodes = grow_plain(x, offsets, y, n_try=3, n_value=5, seed=int(seed))
        plain = predict_plain(nodes, x, offsets, y == 1)
        off = max(off, float(np.abs(plain - told[tree]).max()))
    return {"largest_difference": off}, [] if off < 1e-12 else [f"leaves differ by {off:.2g}"]


def ranks() -> Found:
    """One country of each likelihood and one series, small: drawn, fitted, ranked."""
    small = sbc.Design(n_side=10, n_area=9)
    rows = {name: sbc.measure(name, small, {}, 0) for name in sbc.LIKELIHOODS}
    rows["months"] = sbc_months.measure(small, {}, 0)
    wrong = [f"{name}: {row['error']}" for name, row in rows.items() if "error" in row]
    found = {name: row.get("ranks", {}) for name, row in rows.items()}
    for name, row in found.items():
        if not all(0 < u < 1 for u in row.values()):
            wrong.append(f"{name}: a rank is outside 0 to 1")
    return found, wrong


def pages() -> Found:
    """Pages made of figures are those of the files."""
    told = json.loads((RESULTS / "mil_papers.json").read_text(encoding="utf-8"))
    sets = json.loads((RESULTS / "mil_sets.json").read_text(encoding="utf-8"))
    made: dict[Path, str] = {
        evidence.PAGE: evidence.render(),
        mil_papers.PAGE: mil_papers.page(told),
        mil_page.PAGE: mil_page.page(sets),
        swiss_roll_page.PAGE: swiss_roll_page.page(read_results(RESULTS / "swiss_roll.json")),
        performance.ROOT / "docs/performance.md": performance.made_page(),
    }
    wrong = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    parts = {
        trust.PAGE: trust.table(read_results(RESULTS / "trust.json")["worlds"]),
        sbc_page.PAGE: sbc_page.tables(sbc_page.rows_of()),
    }
    wrong += [path.name for path, text in parts.items() if text not in path.read_text("utf-8")]
    return {"pages": len(made) + len(parts)}, [f"{name} is not of its file" for name in wrong]


CHECKS: dict[str, Callable[[], Found]] = {
    each.__name__: each
    for each in (
        passes, variances, positions, surfaces, contestants, trees, ranks, pages,
    )
}  # fmt: skip


def run(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make checks one after the other; what a check finds wrong does not stop the next."""
    for name in names:
        started = time.perf_counter()
        try:
            with one_blas_thread():
                figures, wrong = CHECKS[name]()
        except (Exception, SystemExit) as error:  # an error of one is what it finds
            figures, wrong = {}, [f"{type(error).__name__}: {error}"]
        seconds = round(time.perf_counter() - started, 1)
        yield name, {"seconds": seconds, "wrong": wrong, "figures": figures}


def main() -> None:
    """Make the checks; end with an error where one finds something."""
    options = parsed(
        __doc__,
        checks={"nargs": "*", "choices": list(CHECKS), "default": list(CHECKS)},
        out=Path("build/quick"),
    )
    found = {}
    for name, row in run(options.checks):
        found[name] = row
        about = (CHECKS[name].__doc__ or name).splitlines()[0]
        print(f"{row['seconds']:6.1f} s  {name}: {'; '.join(row['wrong']) or 'ok'}  ({about})")
    write_results(options.out / "quick.json", {"checks": found})
    if any(row["wrong"] for row in found.values()):
        raise SystemExit("error: benchmarks no longer compare what they say, or a page is old")


if __name__ == "__main__":
    main()
