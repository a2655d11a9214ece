"""A country counted month by month: a season, rain that moves, a drift, counts that are late."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio

from geo.core.calendar import Calendar
from pipeline.demo.country import members_of, simulate_country
from pipeline.demo.country_spec import WGS84, CountrySpec, CovariateSpec
from pipeline.demo.covariate_files import write_raster
from pipeline.demo.terrain import Array, fractal_noise, named_rng

SPEC = CountrySpec(
    (54, 60), 1 / 12, 1600, 40, 10, 1e6, covariates=("elevation", "temperature", "travel_time"),
    n_inducing=60,
)  # fmt: skip
FIRST = "2022-01"
MISSING = 0.05  # share of the counts that never arrive
SEASON, RAIN, DRIFT = 0.6, 0.35, 0.25  # deviations of the logarithm of the rate
MEMORY = 0.85  # correlation of the drift from month to month
LEVEL = 0.5  # share of a year's cases in an average month, times 12


def simulate_months(directory: str | Path, n_month: int, seed: int = 1) -> Path:
    """Simulate a small country and its counts of some months.

    Parameters
    ----------
    directory : path
    n_month : int
        At least 6.
    seed : int

    Returns
    -------
    Path
        The configuration, ``disagg.yaml``. Beside it, besides what
        :func:`pipeline.demo.country.simulate_country` writes: ``rain_{period}.tif``, rain of each
        month as a share of its usual; ``truth_{period}.tif``, the rate, cases per person and month;
        ``cases.csv`` with area, month and cases.
    """
    if n_month < 6:
        msg = f"months: found {n_month}; use 6 or more"
        raise ValueError(msg)
    directory = Path(directory)
    config = simulate_country(directory, SPEC, seed)
    with rasterio.open(directory / "truth_rate.tif") as file:
        year = file.read(1).astype(np.float64)
    with rasterio.open(directory / "population.tif") as file:
        people = np.nan_to_num(file.read(1).astype(np.float64))
    inside = np.isfinite(year)
    north = np.linspace(0.0, 1.0, SPEC.shape[0])[:, None]
    rain_of, drift = _anomalies(n_month, seed), _drift(n_month, seed)
    calendar = Calendar("month")
    first = calendar.number(FIRST)
    assert first is not None
    area, pixel, fraction, ids = members_of(directory / "areas.gpkg", SPEC)
    rng = named_rng(seed, "monthly counts")
    rows = ["area_id,month,cases"]
    about = CovariateSpec("Rain of the month, share of its usual", "1")
    truth = CovariateSpec("True rate", "cases per person and month")
    for month in range(n_month):
        label = calendar.label(first + month)
        season = SEASON * np.sin(2 * np.pi * (month / 12 - 0.25 * north))
        rate = LEVEL / 12 * year * np.exp(season + RAIN * rain_of[month] + drift[month])
        shown = np.where(inside, np.exp(0.5 * rain_of[month]), np.nan)
        write_raster(directory / f"rain_{label}.tif", shown, SPEC.transform, WGS84, about)
        write_raster(
            directory / f"truth_{label}.tif",
            np.where(inside, rate, np.nan),
            SPEC.transform,
            WGS84,
            truth,
        )
        burden = people.ravel()[pixel] * fraction * np.nan_to_num(rate).ravel()[pixel]
        cases = rng.poisson(np.bincount(area, burden))
        late = rng.random(cases.size) < MISSING
        for name, count, is_late in zip(ids, cases, late, strict=True):
            rows.append(f"{name},{label},{'' if is_late else count}")
    (directory / "cases.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (directory / "truth_rate.tif").unlink()
    config.write_text(_config(seed), encoding="utf-8")
    return config


def _anomalies(n_month: int, seed: int) -> list[Array]:
    """Return the rain of each month beside its usual, in deviations."""
    return [
        fractal_noise(SPEC.shape, named_rng(seed, f"rain {month}"), hurst=1.2, longest=30)
        for month in range(n_month)
    ]


def _drift(n_month: int, seed: int) -> list[Array]:
    """Return what wanders over the months, and is smooth in space."""
    found: list[Array] = []
    now = np.zeros(SPEC.shape)
    for month in range(n_month):
        new = fractal_noise(SPEC.shape, named_rng(seed, f"drift {month}"), hurst=1.5, longest=30)
        now = MEMORY * now + np.sqrt(1 - MEMORY**2) * new if month else new
        found.append(DRIFT * now)
    return found


def _config(seed: int) -> str:
    covariates = "\n".join(f"  {name}: {{path: {name}.tif}}" for name in SPEC.covariates)
    return f"""\
# A country counted month by month, simulated by `disagg demo --months`, seed {seed}.
name: simulated-months
areas:       {{path: areas.gpkg, layer: areas, id: area_id}}
counts:      {{path: cases.csv, id: area_id, value: cases, period: month}}
population:  {{path: population.tif}}
covariates:
{covariates}
  rain:      {{path: "rain_{{period}}.tif"}}     # moves: one file a month
grid:        {{like: population.tif}}
time:        {{step: month}}                    # one model of all months
model:                                        # few inducing points: a fit of minutes
  inducing: 60
  options: {{n_moving: 25, n_season: 9}}
output:      {{dir: out, rate_per: 1000, forecast: 3}}
truth:       {{path: "truth_{{period}}.tif"}}    # cases per person and month, known as it is simulated
"""
