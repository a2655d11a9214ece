"""What a fit, an update and a filter cost by the number of periods, in processor time.

    python -m benchmarks.months_cost [--lines LINES] [--out JSON] [--picture PNG]

The country of :mod:`benchmarks.months`, of 3 to 60 months; hyperparameters at their optimum, since
draws of them come from a chain in short series and from a normal distribution in long ones.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.months import shortened, simulate
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import RESULTS, parsed, write_results
from models import SpaceTime
from models.backend.blas import one_blas_thread

PERIODS = (3, 6, 12, 24, 36, 60)


def cost(months: int) -> dict[str, Any]:
    """Return seconds of processor time, and what was done in them."""
    world = simulate(0, months)
    started = time.process_time()
    model = SpaceTime(integrate="none").fit(world.periods, n_thread=1)
    fit = time.process_time() - started
    passes = sum(row.get("passes", 0) for row in model.history_)
    path = model.posterior_.mode
    with one_blas_thread():  # waiting threads would count as work
        started = time.process_time()
        space, sites = path.over([])
        space.smooth(sites)
        smooth = time.process_time() - started
    before = shortened(model, months - 1, members=False)
    started = time.process_time()
    before.with_periods(world.periods[-1], n_thread=1)
    update = time.process_time() - started
    return {
        "months": months,
        "counts": sum(period.bags.n_bag for period in world.periods),
        "fit": fit,
        "passes": passes,
        "converged": model.converged_,
        "fit_by_pass": fit / passes,
        "smooth": smooth,
        "update": update,
    }


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds by periods, with lines through the origin's side for the eye."""
    months = np.array([row["months"] for row in rows])
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    for axis, name, title in zip(
        axes,
        ("fit_by_pass", "smooth", "update"),
        ("A pass of the fit", "Filter and smoother", "An update by a month"),
        strict=True,
    ):
        seconds = np.array([row[name] for row in rows])
        slope, level = np.polyfit(months, seconds, 1)
        axis.plot(months, level + slope * months, color="0.7")
        axis.plot(months, seconds, "o", color="C0")
        axis.set(title=title, xlabel="months", ylim=(0, None), xlim=(0, None))
    axes[0].set_ylabel("processor time, s")
    figure.savefig(path, dpi=150)


def straightness(rows: list[dict[str, Any]], name: str) -> float:
    """Return the exponent of seconds by months, 1 where the cost is linear."""
    months, seconds = (np.log([row[key] for row in rows]) for key in ("months", name))
    return float(np.polyfit(months, seconds, 1)[0])


def main() -> None:
    """Measure what has no record, and write the table and the picture."""
    given = parsed(
        __doc__,
        lines=RESULTS / "months_cost.jsonl",
        out=RESULTS / "months_cost.json",
        picture=Path("docs/figures/months_cost.png"),
    )
    rows = run_missing(cost, PERIODS, given.lines, hash_settings("months cost"))
    exponents = {name: straightness(rows, name) for name in ("fit", "fit_by_pass", "smooth")}
    write_results(given.out, {"exponents": exponents, "rows": rows})
    picture(rows, given.picture)


if __name__ == "__main__":
    main()
