"""Dengue in the provinces of Vietnam by month: forecasts one to three months ahead.

    python -m benchmarks.vietnam [--origins 12] [--settings '{"n_moving": 25}'] [--baselines]

Expanding windows: each method knows all months up to an origin, at the end of each quarter of the
last three years, and forecasts the three that follow. Climate after the origin is its mean of the
same month, for all methods. Ours is fitted anew once a year, and takes in the months between by
``with_periods``. Records are kept by origin, so that a stopped run goes on where it ended.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.special import ndtr
from sklearn.linear_model import PoissonRegressor

from benchmarks.months import crps
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import parsed, write_results
from models import Bags, Period, SpaceTime, load
from pipeline.chap.covariates import Climate
from pipeline.chap.positions import read_positions
from pipeline.chap.tables import Table, read_table
from pipeline.core.sources import code_hashes

DATA = Path(os.environ.get("DISAGG_SHARED_DATA", "../shared/data")) / "vietnam"
OUT = Path("benchmarks/results/vietnam.json")
AHEAD, DRAWS, YEARS = 3, 400, 3


def known_until(table: Table, origin: int) -> Table:
    """Return what is known at the end of a month: counts until then, climate its mean later."""
    cases = table.cases.copy()
    cases[origin + 1 :] = np.nan
    covariates = {}
    month = table.times % 12
    for name, values in table.covariates.items():
        own = values.copy()
        for t in range(origin + 1, len(values)):
            own[t] = values[: origin + 1][month[: origin + 1] == month[t]].mean(axis=0)
        covariates[name] = own
    people = table.people.copy()
    people[origin + 1 :] = people[origin]
    return replace(table, cases=cases, people=people, covariates=covariates)


def inputs_of(known: Table) -> np.ndarray:
    """Return lagged covariates: (n_period, n_location, n_feat)."""
    return Climate.of(known, sorted(known.covariates)).inputs([known], known.times)


def seasonal_mean(known: Table, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Draw from the counts of the same month and its neighbours in all years: (h, draws, loc)."""
    found = []
    for h in range(1, AHEAD + 1):
        near = [t for t in range(origin + 1) if (t - origin - h) % 12 in (0, 1, 11)]
        found.append(_drawn(known.cases[near], rng))
    return np.stack(found)


def _drawn(pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw rows of each column that are no NaN: (draws, n)."""
    columns = []
    for column in pool.T:
        own = column[np.isfinite(column)]
        columns.append(rng.choice(own if own.size else np.zeros(1), DRAWS))
    return np.stack(columns, axis=1)


def last_value(known: Table, origin: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the last count times seasonal factors, with past errors of just that."""
    z = np.log1p(known.cases[: origin + 1])
    month = known.times % 12
    level = np.nanmean(z, axis=0)
    factor = np.stack([np.nanmean(z[month[: origin + 1] == m], axis=0) for m in range(12)]) - level
    z = z - factor[month[: origin + 1]]
    known_rows = np.isfinite(z)
    last = np.array([column[good][-1] for column, good in zip(z.T, known_rows.T, strict=True)])
    found = []
    for h in range(1, AHEAD + 1):
        drawn = last + factor[month[origin + h]] + _drawn(z[h:] - z[:-h], rng)
        found.append(np.rint(np.maximum(np.expm1(np.minimum(drawn, 12.0)), 0.0)))
    return np.stack(found)


def regression(
    known: Table, origin: int, rng: np.random.Generator, *, pooled: bool, lagged: bool
) -> np.ndarray:
    """Draw from negative-binomial regression with harmonics and lagged climate.

    ``pooled`` shares slopes between provinces; ``lagged`` has, one regression for each month ahead,
    the log of the last known count too, and of the provinces' mean of it.
    """
    n = len(known.locations)
    x = inputs_of(known)
    x = (x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1))
    angle = 2 * np.pi * known.times / 12
    waves = np.column_stack([f(j * angle) for j in (1, 2) for f in (np.cos, np.sin)])
    z = np.log1p(known.cases)
    for t in range(1, len(z)):  # the last count that is known
        z[t] = np.where(np.isfinite(z[t]), z[t], z[t - 1])
    z = np.where(np.isfinite(z), z, np.nanmean(z))
    cases = known.cases[: origin + 1]
    usual = (np.nansum(cases, axis=0) + 0.5) / known.people[: origin + 1].sum(axis=0)
    base = usual * known.people  # a province's slopes are then about its own mean
    found = []
    for h in range(1, AHEAD + 1):
        parts = [x, np.broadcast_to(waves[:, None], (*x.shape[:2], 4))]
        if lagged:
            before = np.concatenate([np.repeat(z[:1], h, axis=0), z[:-h]]) - np.log1p(base)
            mean = np.broadcast_to(before.mean(axis=1, keepdims=True), before.shape)
            parts.append(np.stack([before, mean], axis=2))
        design = np.concatenate(parts, axis=2)
        good = np.isfinite(known.cases)
        good[: 2 * AHEAD] = False  # lags reach before the data
        mean, over = np.zeros(n), np.zeros(n)
        for own in [np.arange(n)] if pooled else [np.array([k]) for k in range(n)]:
            given = design[:, own], known.cases[:, own], base[:, own], good[:, own]
            mean[own], over[own] = _negative_binomial(*given, origin + h)
        scale = rng.gamma(1 / over, over, (DRAWS, n))
        found.append(rng.poisson(np.minimum(mean * scale, 1e6)))
    return np.stack(found)


def _negative_binomial(
    design: np.ndarray, y: np.ndarray, base: np.ndarray, good: np.ndarray, ahead: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit means and a dispersion of each location by turns; return both for a month ahead."""
    y = np.where(good, y, 0.0)
    over, fitted = np.ones(y.shape[1]), base
    for _ in range(4):
        weight = base / (1 + over * fitted)
        fit = PoissonRegressor(alpha=1e-3, max_iter=500, solver="newton-cholesky").fit(
            design[good], (y / base)[good], sample_weight=weight[good]
        )
        ratio = fit.predict(design.reshape(-1, design.shape[2])).reshape(y.shape)
        fitted = base * np.clip(ratio, 1e-6, 2 * (y / base).max(axis=0) + 1.0)
        off = np.where(good, (y - fitted) ** 2 - fitted, 0.0).sum(axis=0)
        over = np.clip(off / np.where(good, fitted**2, 0.0).sum(axis=0), 0.05, 20.0)
    return fitted[ahead], over


def periods_of(known: Table, first: int, last: int, places: np.ndarray) -> list[Period]:
    """Return the months ``first`` to ``last`` as bags of a pixel each."""
    x = inputs_of(known)
    found = []
    for t in range(first, last + 1):
        area = np.flatnonzero(np.isfinite(known.cases[t]))
        bags = Bags(
            x[t, area],
            np.arange(area.size + 1),
            known.cases[t, area],
            known.people[t, area],
            places[area],
        )
        found.append(Period(float(known.times[t]), bags, area))
    return found


def ours(
    known: Table, origin: int, rng: np.random.Generator, given: dict[str, Any], work: Path
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draw from the model of space and time, fitted at the end of the year before."""
    places = read_positions(DATA / "chap_VNM_admin1_monthly.geojson", known.locations)
    fitted_at = origin - (origin + 1) % 12
    path = work / f"fit-{fitted_at}-{hash_settings(given, code_hashes()['models'])}"
    started = time.process_time()
    model: SpaceTime
    if path.exists():
        model = cast(SpaceTime, load(path))
    else:
        then = known_until(known, fitted_at)
        settings = {name: value for name, value in given.items() if name != "from"}
        periods = periods_of(then, given.get("from", 0), fitted_at, places)
        model = SpaceTime(**settings).fit(periods, n_thread=1)
        model.save(path)
    fit_seconds = time.process_time() - started
    if fitted_at < origin:
        model = model.with_periods(*periods_of(known, fitted_at + 1, origin, places), n_thread=1)
    x, n = inputs_of(known), len(known.locations)
    times = [float(known.times[origin + h]) for h in range(1, AHEAD + 1)]
    functions = model.sample_functions(DRAWS, rng, times)
    found = []
    for h in range(1, AHEAD + 1):
        bags = Bags(x[origin + h], np.arange(n + 1), np.zeros(n), known.people[origin + h], places)
        own = model.predict_bags(bags, period=times[h - 1], area=np.arange(n), draws=functions)
        found.append(own.observed(rng).draws)
    about = {
        "fit_seconds": fit_seconds,
        "seconds": time.process_time() - started,
        "converged": model.converged_,
        "hyperparameters": model.named_hyperparameters(),
    }
    return np.stack(found), about


def scores(draws: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Return scores by month ahead, of provinces with a count: draws (h, n_draws, n), y (h, n)."""
    found: dict[str, Any] = {}
    inside_90: list[np.ndarray] = []
    for own, seen in zip(draws, y, strict=True):
        good = np.isfinite(seen)
        inside = np.full(seen.size, np.nan)
        own, seen = own[:, good].astype(float), seen[good]
        below, same = (own < seen).mean(axis=0), (own == seen).mean(axis=0)
        rank = below + same * rng.random(seen.size)  # ties of counts by their randomised rank
        inside[good] = (rank > 0.05) & (rank < 0.95)
        row = {
            "crps": crps(own, seen).mean(),
            "crps_log": crps(np.log1p(own), np.log1p(seen)).mean(),
            "covers_50": ((rank > 0.25) & (rank < 0.75)).mean(),
            "covers_90": ((rank > 0.05) & (rank < 0.95)).mean(),
            "log_score": log_score(own, seen).mean(),
            "n": seen.size,
        }
        for name, value in row.items():
            found.setdefault(name, []).append(float(value))
        inside_90.append(inside)
    by_province = [
        (int(np.nansum(own)), int(np.isfinite(own).sum())) for own in np.transpose(inside_90)
    ]
    return {**found, "inside_90": by_province}


def log_score(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the negative log probability of counts, by a kernel density of log(1 + draws)."""
    z = np.log1p(draws)
    width = np.maximum(0.9 * z.std(axis=0) * len(z) ** -0.2, 0.1)
    top, bottom = np.log(y + 1.5), np.where(y > 0, np.log(y + 0.5), -np.inf)
    mass = (ndtr((top - z) / width) - ndtr((bottom - z) / width)).mean(axis=0)
    return -np.log(0.999 * mass + 0.001 / (1 + y) ** 1.5)  # a draw in a thousand from a wide tail


def one_origin(number: int, given: dict[str, Any], work: Path, with_ours: bool) -> dict[str, Any]:
    """Return the scores of all methods at an origin; the first is the end of a year."""
    table = read_table(DATA / "chap_VNM_admin1_monthly.csv")
    origin = len(table.times) - 12 * YEARS - 1 + AHEAD * number
    known = known_until(table, origin)
    y = table.cases[origin + 1 : origin + 1 + AHEAD]
    rng = np.random.default_rng([number, 2010])
    methods: dict[str, np.ndarray] = {
        "seasonal_mean": seasonal_mean(known, origin, rng),
        "last_value": last_value(known, origin, rng),
        "regression": regression(known, origin, rng, pooled=True, lagged=False),
        "regression_by_province": regression(known, origin, rng, pooled=False, lagged=False),
        "autoregression": regression(known, origin, rng, pooled=True, lagged=True),
    }
    about: dict[str, Any] = {}
    if with_ours:
        methods["space_time"], about = ours(known, origin, rng, given, work)
    found = {name: scores(own, y, rng) for name, own in methods.items()}
    return {"origin": table.names[origin], "scores": found, "space_time": about}


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the means over origins, weighed by counts."""
    found: dict[str, dict[str, float]] = {}
    for name in records[0]["scores"]:
        own = [record["scores"][name] for record in records if name in record["scores"]]
        n = np.array([each["n"] for each in own])
        found[name] = {
            key: float((np.array([each[key] for each in own]) * n).sum() / n.sum())
            for key in own[0]
            if key not in ("n", "inside_90")
        }
        inside, counts = np.array([each["inside_90"] for each in own]).sum(axis=0).T
        share = inside[counts > 0] / counts[counts > 0]
        for key, level in {"lowest": 0.0, "tenth": 0.1, "median": 0.5, "highest": 1.0}.items():
            found[name][f"province_90_{key}"] = float(np.quantile(share, level))
    return found


def main() -> None:
    """Run what is missing and write the table."""
    given = parsed(
        __doc__,
        origins=4 * YEARS,
        settings={"type": json.loads, "default": {}},
        baselines=(False, "without ours"),
        work=Path("out/vietnam"),
        out=OUT,
    )
    given.work.mkdir(parents=True, exist_ok=True)
    settings = hash_settings(given.settings, given.baselines, Path(__file__).read_text())
    measure = partial(
        one_origin, given=given.settings, work=given.work, with_ours=not given.baselines
    )
    records = run_missing(measure, range(given.origins), given.work / "records.jsonl", settings)
    means = summary(records)
    for own in (each for record in records for each in record["scores"].values()):
        del own["inside_90"]
    table = {
        "settings": given.settings,
        "summary": means,
        "origins": records,
    }
    write_results(given.out, table)
    print(json.dumps(table["summary"], indent=1))


if __name__ == "__main__":
    main()
