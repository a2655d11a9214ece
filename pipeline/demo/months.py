"""A country counted month by month: a season, rain that moves, a drift, counts that are late."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rasterio

from geo.core.calendar import Calendar
from pipeline.demo.country import members_of, simulate_country
from pipeline.demo.country_spec import LAYERS, SIZES, WGS84, CountrySpec, CovariateSpec
from pipeline.demo.covariate_files import write_raster
from pipeline.demo.terrain import Array, fractal_noise, named_rng

SPECS = {
    "small": CountrySpec(
        (54, 60), 1 / 12, 1600, 40, 10, 1e6, covariates=("elevation", "temperature", "travel_time"),
        n_inducing=60,
    ),
    "country": SIZES["country"],
}  # fmt: skip
FIRST = "2022-01"
LATER = "later"  # folder of what arrives later
CORRECTION = "correction"  # in it, of the table that comes after the last month
MODEL = """\
model:                                        # few inducing points: a fit of minutes
  inducing: 60
  options: {n_season: 9}
"""
MISSING = 0.05  # share of the counts that never arrive
SEASON, RAIN, DRIFT = 0.6, 0.35, 0.25  # deviations of the logarithm of the rate
MEMORY = 0.85  # correlation of the drift from month to month
LEVEL = 0.5  # share of a year's cases in an average month, times 12


def simulate_months(
    directory: str | Path, n_month: int, seed: int = 1, *, n_later: int = 0, size: str = "small"
) -> Path:
    """Simulate a country and its counts of some months.

    Parameters
    ----------
    directory : path
    n_month : int
        At least 6.
    seed : int
    n_later : int
        Months at the end that have not arrived, at least 6 fewer than there are: ``later/<month>``
        has their rain, and the table of all counts until then. In the second of them the largest
        count has lost its last digit; the table of ``later/correction`` has it right, and the
        counts of these months that were late.
    size : {"small", "country"}
        "small": 40 areas of 1,600 pixels. "country": as of ``simulate_country``.

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
    if not 0 <= n_later <= n_month - 6:
        msg = f"months that arrive later: found {n_later} of {n_month}; leave 6 or more at the start"
        raise ValueError(msg)
    directory, spec = Path(directory), SPECS[size]
    shutil.rmtree(directory / LATER, ignore_errors=True)  # of an earlier demo
    config = simulate_country(directory, spec, seed)
    with rasterio.open(directory / "truth_rate.tif") as file:
        year = file.read(1).astype(np.float64)
    with rasterio.open(directory / "population.tif") as file:
        people = np.nan_to_num(file.read(1).astype(np.float64))
    inside = np.isfinite(year)
    north = np.linspace(0.0, 1.0, spec.shape[0])[:, None]
    drift = np.zeros(spec.shape)  # what wanders over the months, and is smooth in space
    calendar = Calendar("month")
    first = calendar.number(FIRST)
    assert first is not None
    area, pixel, fraction, ids = members_of(directory / "areas.gpkg", spec)
    rng = named_rng(seed, "monthly counts")
    tables = _Tables(ids, n_month - n_later)
    about = CovariateSpec("Rain of the month, share of its usual", "1")
    truth = CovariateSpec("True rate", "cases per person and month")
    for left in [*directory.glob("rain_*.tif"), *directory.glob("truth_????-??.tif")]:
        left.unlink()  # of an earlier demo, which may have been longer
    for month in range(n_month):
        label = calendar.label(first + month)
        season = SEASON * np.sin(2 * np.pi * (month / 12 - 0.25 * north))
        rain = _smooth(spec, seed, f"rain {month}", 1.2)  # beside its usual, in deviations
        new = _smooth(spec, seed, f"drift {month}", 1.5)
        drift = MEMORY * drift + np.sqrt(1 - MEMORY**2) * new if month else new
        rate = LEVEL / 12 * year * np.exp(season + RAIN * rain + DRIFT * drift)
        shown = np.where(inside, np.exp(0.5 * rain), np.nan)
        there = directory / LATER / label if month >= n_month - n_later else directory
        there.mkdir(parents=True, exist_ok=True)
        write_raster(there / f"rain_{label}.tif", shown, spec.transform, WGS84, about)
        write_raster(
            directory / f"truth_{label}.tif",
            np.where(inside, rate, np.nan),
            spec.transform,
            WGS84,
            truth,
        )
        burden = people.ravel()[pixel] * fraction * np.nan_to_num(rate).ravel()[pixel]
        cases = rng.poisson(np.bincount(area, burden))
        late = rng.random(cases.size) < MISSING
        tables.add(label, cases, late)
        if month >= n_month - n_later - 1:
            _write_table(there / "cases.csv", tables.reported)
    if n_later:
        _write_table(directory / LATER / CORRECTION / "cases.csv", tables.corrected)
    (directory / "truth_rate.tif").unlink()
    config.write_text(_config(size, seed, n_month - n_later), encoding="utf-8")
    return config


class _Tables:
    """The rows of the counts, as they are reported and as they are corrected.

    Parameters
    ----------
    ids : sequence of str
        Of the areas.
    n_first : int
        Months of the first table.
    """

    def __init__(self, ids: Sequence[str], n_first: int) -> None:
        self._ids, self._n_first, self._n = ids, n_first, 0
        self.reported: list[str] = []
        self.corrected: list[str] = []

    def add(self, label: str, cases: np.ndarray, late: np.ndarray) -> None:
        """Add the counts of a month, and which of them are late."""
        wrong = int(np.argmax(np.where(late, -1, cases))) if self._n == self._n_first + 1 else -1
        for k, (name, count) in enumerate(zip(self._ids, cases, strict=True)):
            said = "" if late[k] else str(count // 10 if k == wrong else count)
            right = said if self._n < self._n_first else str(count)
            self.reported.append(f"{name},{label},{said}")
            self.corrected.append(f"{name},{label},{right}")
        self._n += 1


def _write_table(path: Path, rows: Sequence[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["area_id,month,cases", *rows]) + "\n", encoding="utf-8")


def _smooth(spec: CountrySpec, seed: int, name: str, hurst: float) -> Array:
    longest = 30 * spec.shape[0] / SPECS["small"].shape[0]
    return fractal_noise(spec.shape, named_rng(seed, name), hurst=hurst, longest=longest)


def _config(size: str, seed: int, n_month: int) -> str:
    covariates = "\n".join(
        f"  {name}: {{path: {name}.tif, transform: {LAYERS[name].transform}}}"
        if size != "small"
        else f"  {name}: {{path: {name}.tif}}"
        for name in SPECS[size].covariates
    )
    model = MODEL if size == "small" else ""
    windows = ', windows: "last 12"' if n_month >= 12 else ""
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
{model}output:      {{dir: out, rate_per: 1000, forecast: 3{windows}}}
truth:       {{path: "truth_{{period}}.tif"}}    # cases per person and month, known as it is simulated
"""
