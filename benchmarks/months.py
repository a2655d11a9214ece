"""Two years of counts by month: maps, intervals, forecasts and updates of space and time together.

    python -m benchmarks.months [--countries 20] [--workers 1] [--lines LINES] [--out JSON]

Simulated: 80 areas, 3,600 pixels, 24 months and three to forecast, a mean of 6 cases an area and
month, 5 % of the counts missing; two covariates, one of which moves; a static field, a drift, a
season that differs in space, an outbreak that moves, and noise between areas and months. A
country's figures are a line of ``LINES``, so that it goes on where it ended; the JSON has the means
over countries with their standard errors.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import PoissonRegressor

from benchmarks.month_alarms import AHEAD as AHEAD_OF_ALARM
from benchmarks.month_alarms import FIRST, alarm_scores
from benchmarks.records import hash_settings, run_missing
from benchmarks.report import parsed, write_results
from models import Bags, Period, SpaceTime, VBAgg
from models.temporal.sites import SITE

SIDE, N_AREA, MONTHS, AHEAD, CASES = 60, 80, 24, 3, 6.0
MISSING, NOISE = 0.05, 0.2
OUT = Path("benchmarks/results/months.json")
PARTS = ("one_month", "space_time", "ahead", "forecast", "update", "alarms")


@dataclass(frozen=True)
class World:
    """A simulated country.

    Attributes
    ----------
    periods : list of Period
        The months of the data, missing counts left out.
    whole : list of Bags
        All months with all counts, those ahead included.
    f : (n_month, n_pix)
        Log rates.
    missing : (MONTHS, N_AREA) bool
    excess : (n_month, N_AREA)
        Log of the areas' rates by what they would be without the outbreak.
    """

    periods: list[Period]
    whole: list[Bags]
    f: np.ndarray
    missing: np.ndarray
    excess: np.ndarray


def smooth_field(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Return a field of unit variance and smoothness 1, Whittle's: (SIDE, SIDE).

    ``scale`` in pixels: its correlation is .14 at 2.8 times that.
    """
    wide = 2 * SIDE  # the edges of a larger torus do not meet
    frequency = 2 * np.pi * np.fft.fftfreq(wide)
    power = (scale**-2.0 + frequency[:, None] ** 2 + frequency**2) ** -2.0
    noise = np.fft.fft2(rng.standard_normal((wide, wide)))
    field = np.fft.ifft2(noise * np.sqrt(power / power.mean())).real
    return np.asarray(field[:SIDE, :SIDE])


def simulate(seed: int, months: int = MONTHS) -> World:
    """Draw a country, with counts of so many months."""
    rng = np.random.default_rng([seed, 2024])
    row, column = np.divmod(np.arange(SIDE**2), SIDE)
    coords = np.column_stack([column, row]).astype(float)
    centres = rng.uniform(0, SIDE, (N_AREA, 2))
    for _ in range(3):  # areas of like size
        area = ((coords[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.stack([coords[area == k].mean(axis=0) for k in range(N_AREA)])
    order = np.argsort(area, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(area, minlength=N_AREA))])
    still, x_still = 0.5 * smooth_field(rng, 4.0), smooth_field(rng, 6.0)
    drift, x_moves = smooth_field(rng, 10.0), smooth_field(rng, 6.0)
    size, phase = 0.5 + 0.15 * smooth_field(rng, 12.0), 0.4 * smooth_field(rng, 12.0)
    start, away = rng.uniform(15, 45, 2), rng.uniform(-1.2, 1.2, 2)
    people = np.exp(0.7 * smooth_field(rng, 3.0) + 0.5 * rng.standard_normal((SIDE, SIDE)))
    keep = np.exp(-1.0 / 8.0)
    f, quiet, xs = [], [], []
    for t in range(months + AHEAD):
        drift = keep * drift + np.sqrt(1 - keep**2) * smooth_field(rng, 10.0)
        x_moves = 0.7 * x_moves + np.sqrt(1 - 0.49) * smooth_field(rng, 6.0)
        season = size * np.cos(2 * np.pi * t / 12 + phase)
        place = start + away * (t - 10)
        distance = ((np.column_stack([column, row]) - place) ** 2).sum(axis=1).reshape(SIDE, SIDE)
        level = np.exp(-0.5 * ((t - 16) / 5.0) ** 2)
        outbreak = 1.2 * level * np.exp(-0.5 * distance / 7.0**2)
        rate = 0.4 * x_still + 0.4 * x_moves + still + 0.35 * drift + season
        quiet.append(rate.ravel()[order])
        f.append((rate + outbreak).ravel()[order])
        xs.append(np.column_stack([x_still.ravel()[order], x_moves.ravel()[order]]))
    weight = people.ravel()[order]
    log_rate = np.stack(f)
    mean, without = (
        np.stack([np.add.reduceat(weight * np.exp(each), offsets[:-1]) for each in rates])
        for rates in (f, quiet)
    )
    level = CASES / mean[:months].mean()
    noise = np.exp(NOISE * rng.standard_normal(mean.shape) - 0.5 * NOISE**2)
    y = rng.poisson(level * mean * noise).astype(float)
    missing = rng.random((months, N_AREA)) < MISSING
    whole = [Bags(x, offsets, own, weight, coords[order]) for x, own in zip(xs, y, strict=True)]
    periods = [Period(float(t), whole[t].at(np.flatnonzero(~missing[t]))) for t in range(months)]
    return World(periods, whole, log_rate + np.log(level), missing, np.log(mean / without))


def crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the continuous ranked probability score of an ensemble (n_draws, n): (n,)."""
    ordered = np.sort(draws, axis=0)
    n = draws.shape[0]
    weight = (2 * np.arange(1, n + 1) - n - 1)[:, None]
    spread = (weight * ordered).sum(axis=0) / n**2
    return np.abs(draws - y).mean(axis=0) - spread


def covered(draws: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> float:
    """Return the share in the central 90 %; ties of counts count by their randomised rank."""
    below, same = (draws < y).mean(axis=0), (draws == y).mean(axis=0)
    rank = below + same * rng.random(y.size)
    return float(((rank > 0.05) & (rank < 0.95)).mean())


def pixel_scores(prediction: Any, f: np.ndarray, people: np.ndarray) -> dict[str, float]:
    """Return correlation of log rates and 90 % coverage, by pixel and by people."""
    low, high = np.log(prediction.quantile(0.05)), np.log(prediction.quantile(0.95))
    return {
        "correlation": float(np.corrcoef(np.log(prediction.quantile(0.5)), f)[0, 1]),
        "covers": float(((low < f) & (f < high)).mean()),
        "covers_people": float(np.average((low < f) & (f < high), weights=people)),
        "width": float((high - low).mean()),
    }


def baselines(world: World, rng: np.random.Generator, n_draws: int) -> dict[str, np.ndarray]:
    """Return forecasts (AHEAD, n_draws, N_AREA) by name."""
    counts = np.stack([each.y for each in world.whole[:MONTHS]])
    counts = np.where(world.missing, np.nan, counts)
    area_mean = np.nanmean(counts, axis=0)
    filled = np.where(np.isnan(counts), area_mean, counts)
    seasonal, last, regression = [], [], []
    x = np.stack(
        [
            np.stack(
                [
                    np.add.reduceat(each.x[:, k] * each.weight, each.offsets[:-1])
                    / np.add.reduceat(each.weight, each.offsets[:-1])
                    for k in range(2)
                ],
                axis=1,
            )
            for each in world.whole
        ]
    )  # (n_month, N_AREA, 2)
    months = np.arange(MONTHS + AHEAD)
    waves = [f(2 * np.pi * j * months / 12) for j in (1, 2) for f in (np.cos, np.sin)]

    def design(t: int) -> np.ndarray:
        own = np.tile([wave[t] for wave in waves], (N_AREA, 1))
        return np.column_stack([np.eye(N_AREA), own, x[t]])

    known = ~world.missing
    rows = np.concatenate([design(t)[known[t]] for t in range(MONTHS)])
    fit = PoissonRegressor(alpha=1e-3, max_iter=1000).fit(rows, counts[known])
    fitted = fit.predict(rows)
    over = max(float(((counts[known] - fitted) ** 2 - fitted).sum() / (fitted**2).sum()), 1e-3)
    for h in range(AHEAD):
        t = MONTHS + h
        near = [k for k in range(MONTHS) if min((k - t) % 12, (t - k) % 12) <= 1]
        seasonal.append(rng.poisson(filled[rng.choice(near, n_draws)]))
        jumps = filled[h + 1 :] - filled[: -h - 1]
        moved = filled[-1] + jumps[rng.integers(jumps.shape[0], size=n_draws)]
        last.append(np.maximum(moved, 0.0))
        mean = fit.predict(design(t))
        regression.append(rng.poisson(mean * rng.gamma(1 / over, over, (n_draws, N_AREA))))
    return {
        "seasonal_mean": np.stack(seasonal),
        "last_value": np.stack(last),
        "harmonic_regression": np.stack(regression),
    }


def one_world(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return all scores of a country."""
    world, rng = simulate(seed), np.random.default_rng(seed)
    found: dict[str, Any] = {"seed": seed}
    last, area = (
        world.whole[MONTHS - 1],
        np.repeat(np.arange(N_AREA), np.diff(world.whole[0].offsets)),
    )
    started = time.process_time()
    alone = VBAgg(link="exp").fit(world.periods[-1].bags, n_thread=1)
    found["one_month"] = {
        **pixel_scores(alone.predict_pixels(last.x, last.coords), world.f[MONTHS - 1], last.weight),
        "seconds": time.process_time() - started,
    }
    started = time.process_time()
    model = SpaceTime(**settings).fit(world.periods, n_thread=1)
    seconds = time.process_time() - started
    at_last = model.predict_pixels(last.x, last.coords, MONTHS - 1, area)
    found["space_time"] = {
        **pixel_scores(at_last, world.f[MONTHS - 1], last.weight),
        "seconds": seconds,
        "passes": sum(row.get("passes", 0) for row in model.history_),
        "steps": len(model.history_),
        "converged": model.converged_,
        "hyperparameters": model.named_hyperparameters(),
    }
    times = [float(t) for t in range(MONTHS + AHEAD)]
    draws = model.sample_functions(400, rng, times)
    held, y_held = [], []
    for t in range(MONTHS):
        gone = np.flatnonzero(world.missing[t])
        if gone.size:
            bags = world.whole[t].at(gone)
            counts = model.predict_bags(bags, period=t, area=gone, draws=draws)
            held.append(counts.observed(rng).draws)
            y_held.append(bags.y)
    found["space_time"]["held_covers"] = covered(
        np.concatenate(held, axis=1), np.concatenate(y_held), rng
    )
    found["space_time"]["held_crps"] = float(
        crps(np.concatenate(held, axis=1), np.concatenate(y_held)).mean()
    )
    ahead = np.stack(
        [
            model.predict_bags(world.whole[t], period=t, draws=draws).observed(rng).draws
            for t in range(MONTHS, MONTHS + AHEAD)
        ]
    )
    every = {"space_time": ahead, **baselines(world, rng, 400)}
    found["forecast"] = {
        name: {
            "crps": [float(crps(own[h], world.whole[MONTHS + h].y).mean()) for h in range(AHEAD)],
            "covers": [covered(own[h], world.whole[MONTHS + h].y, rng) for h in range(AHEAD)],
        }
        for name, own in every.items()
    }
    found["ahead"] = [
        pixel_scores(
            model.predict_pixels(world.whole[t].x, last.coords, t, area), world.f[t], last.weight
        )
        for t in range(MONTHS, MONTHS + AHEAD)
    ]
    found["update"] = update_scores(model, world)
    found["alarms"] = alarm_scores(shortened(model, FIRST - AHEAD_OF_ALARM, members=False), world)
    return found


def shortened(model: SpaceTime, months: int = MONTHS - 1, *, members: bool) -> SpaceTime:
    """Return a fit without its last months, all else as it is."""
    state, other = model.fitted_state(), SpaceTime(**model.get_params())
    params = {k: v[:months] if k in SITE else v for k, v in state.params.items()}
    kept = {k: v[:, :months] if k in SITE else v for k, v in state.members.items()}
    fixed = {**state.fixed, "times": state.fixed["times"][:months]}
    other.state_ = replace(state, params=params, fixed=fixed, members=kept if members else {})
    other.history_, other.converged_ = model.history_, model.converged_
    return other


def update_scores(model: SpaceTime, world: World) -> dict[str, float]:
    """Return the cost of a month, and how far it is from settling all sites anew."""
    last = world.periods[-1]
    before = shortened(model, members=True)
    started = time.process_time()
    before.with_periods(last, n_thread=1)
    seconds = time.process_time() - started
    alone = shortened(model, members=False).with_periods(*world.periods[:-1], n_thread=1)
    updated, settled = (alone.with_periods(*each, n_thread=1) for each in ([last], world.periods))
    apart = {}
    for name, t in (("first", 0.0), ("last", MONTHS - 1.0)):
        modes = [each.posterior_.mode for each in (updated, settled)]
        (mean, own), (other, sd) = (
            (m, np.sqrt(cov.diagonal(mode.split)))
            for mode, (m, cov) in ((mode, mode.moments_of_values([t])[0]) for mode in modes)
        )
        apart[f"{name}_month_mean_off_sd"] = float(np.abs((mean - other) / sd).max())
        apart[f"{name}_month_sd_ratio_off"] = float(np.abs(own / sd - 1).max())
    return {"seconds": seconds, **apart}


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number of a tree by its path."""
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, float(tree)


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean over countries of each figure, and the standard error of that mean."""
    tables = [dict(leaves({k: row[k] for k in PARTS if k in row})) for row in rows]
    found = {}
    for name in sorted(set.intersection(*(set(table) for table in tables))):
        values = np.array([table[name] for table in tables])
        error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
        found[name] = {"mean": float(values.mean()), "standard_error": float(error)}
    return found


def main() -> None:
    """Run what has no record yet, and write the table."""
    given = parsed(
        __doc__,
        countries=20,
        workers=1,
        lines=Path("benchmarks/results/months.jsonl"),
        out=OUT,
        settings={"type": json.loads, "default": {}},
    )
    measure = functools.partial(one_world, settings=given.settings)
    key = hash_settings("months", given.settings)
    rows = run_missing(measure, range(given.countries), given.lines, key, given.workers)
    write_results(given.out, {"settings": given.settings, "summary": summary(rows), "rows": rows})


if __name__ == "__main__":
    main()
