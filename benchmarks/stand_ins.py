"""What stands in for a covariate of a month ahead: the past periods that the product takes, others.

    python -m benchmarks.stand_ins [--series 1500]

Nothing is fitted. A series has one covariate, a season and anomalies that last from month to month
(correlation .4), and rates are ``exp(.7 x)``, known up to a factor of deviation .12. One to three
months ahead, the covariate is that of past months: those of
:meth:`pipeline.store.series_store.SeriesStore.candidates`, or all of them alike, the last, or the
same month of other years. Scores are the CRPS in units of the true rate and the ratio of the mean
of the draws to it (its geometric mean). A minute; writes ``benchmarks/results/stand_ins.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, parsed, write_results
from pipeline.evaluation.scores import crps
from pipeline.store.series_store import SeriesStore

SLOPE, SPREAD, LASTS, N_DRAW, SEASON = 0.7, 0.12, 0.4, 400, 12
#: Deviation of the season's cosine over the year, and of the anomalies.
SEASONS = {"strong": (1.2, 0.3), "regular": (1.2, 0.15), "half": (0.6, 0.3), "weak": (0.3, 0.4)}
#: Months of history, from and to.
HISTORIES = {"3 to 5": (3, 5), "6 to 10": (6, 10), "11": (11, 11), "12 to 22": (12, 22),
             "24 to 34": (24, 34)}  # fmt: skip


def taken(n: int, ahead: int) -> list[int]:
    """Return the months, counted from 0, that the product takes after so many."""
    labels = [f"{k}" for k in range(n)]
    store = SeriesStore("nowhere", labels, list(range(n)), float(SEASON))
    store.__dict__["_known"] = tuple(labels)  # each month has its covariate
    return [int(label) for label in store.candidates("ahead", float(n + ahead - 1))]


def schemes(n: int, ahead: int) -> dict[str, list[int]]:
    """Return the months that each way takes."""
    same = list(range((n + ahead - 1) % SEASON, n, SEASON))
    found = {"taken": taken(n, ahead), "all": list(range(n)), "last": [n - 1]}
    return found | ({"same": same} if same else {})


def draw_covariate(n: int, amplitude: float, sd: float, rng: np.random.Generator) -> np.ndarray:
    """Return a covariate of ``n`` months, whose season has a phase by chance: (n,)."""
    phase = rng.integers(SEASON)
    anomaly = np.empty(n)
    anomaly[0] = sd * rng.standard_normal()
    for k in range(1, n):
        fresh = np.sqrt(1 - LASTS**2) * sd * rng.standard_normal()
        anomaly[k] = LASTS * anomaly[k - 1] + fresh
    season: np.ndarray = amplitude * np.cos(2 * np.pi * (np.arange(n) + phase) / SEASON)
    return season + anomaly


def measure(season: str, history: str, n_series: int) -> dict[str, Any]:
    """Return the scores of each way, means over series."""
    (amplitude, sd), (least, most) = SEASONS[season], HISTORIES[history]
    rng = np.random.default_rng([list(SEASONS).index(season), list(HISTORIES).index(history)])
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(n_series):
        n, ahead = int(rng.integers(least, most + 1)), int(rng.integers(1, 4))
        x = draw_covariate(n + ahead, amplitude, sd, rng)
        noise = SPREAD * rng.standard_normal(N_DRAW)
        for name, months in schemes(n, ahead).items():
            like = np.resize(months, N_DRAW)
            ratio = np.exp(SLOPE * (x[like] - x[-1]) + rng.permutation(noise))
            low, high = np.quantile(ratio, [0.05, 0.95])
            score = float(crps(ratio[:, None], np.ones(1))[0])
            row = (score, float(np.log(ratio.mean())), float(low <= 1 <= high))
            rows.setdefault(name, []).append(row)
    return {
        name: {
            "series": len(each),
            "crps": round(float(np.mean([row[0] for row in each])), 3),
            "ratio": round(float(np.exp(np.mean([row[1] for row in each]))), 3),
            "coverage_90": round(float(np.mean([row[2] for row in each])), 3),
        }
        for name, each in rows.items()
    }


def main() -> None:
    """Measure all settings and write the file."""
    args = parsed(__doc__, series=1500, results=RESULTS)
    found = {
        season: {history: measure(season, history, args.series) for history in HISTORIES}
        for season in SEASONS
    }
    for season, each in found.items():
        for history, row in each.items():
            said = ", ".join(f"{name} {own['crps']} ({own['ratio']})" for name, own in row.items())
            print(f"{season}, {history} months: CRPS (ratio) {said}")
    write_results(Path(args.results) / "stand_ins.json", {"settings": found})


if __name__ == "__main__":
    main()
