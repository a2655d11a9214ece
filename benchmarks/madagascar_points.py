"""Survey clusters beside the districts of Madagascar, through configuration, ingest and fit.

    python -m benchmarks.madagascar_points [--seeds 8] [--first 0]

The districts, people and covariates are those of ``examples/madagascar``. Nobody knows the rate of
its pixels, so it is drawn: the slopes of the published fit (intercept -3.2; elevation -.47, EVI
.39, surface temperature .21) and a Matern-3/2 field of deviation .7 and range 120 km, of which the
covariates do not tell. Counts of districts are Poisson, times noise of deviation .3. 150 clusters
are where people live, 25 tested in each, positive with probability ``1 - exp(-kappa rate)``, .2 on
average; clusters differ by .2. Places are reported as DHS does: urban ones (pixels of most people,
a quarter of all) up to 2 km away, others up to 5 km, one in a hundred up to 10 km. A pixel is
4.6 km wide. Arms: districts alone; clusters alone, at their reported places; both, with ``radius:
dhs``; both, reported places taken for true ones; both, true places. Scores of pixels with people,
of the pattern of the log rate: its deviation from the mean over pixels.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import yaml
from pyproj import Geod

import models
from benchmarks.madagascar import EXAMPLE
from benchmarks.points import CLUSTER_SD, KERNEL, PREVALENCE, TESTED, scored
from benchmarks.report import RESULTS, parsed, read_results, write_results
from models import VBAgg
from models.core.block import BagBlock, Bags
from pipeline import BagStore
from pipeline.config.context import StageContext
from pipeline.config.reader import load_config
from pipeline.ingest.stage import ingest
from pipeline.store.point_store import PointStore
from pipeline.training.stage import fit_stage

N_POINT, AREA_SD, FIELD_SD, RANGE_KM, URBAN = 150, 0.3, 0.7, 120.0, 0.25
SLOPES = {"elevation": -0.47, "evi": 0.39, "lst_mean": 0.21}
INTERCEPT = -3.2
ARMS = ("areas", "points", "both", "reported", "true")
PATH = RESULTS / "madagascar_points.json"
LARGEST = 5.0  # of a simulated rate over the intercept's, as a factor's logarithm


def matern_field(coords: np.ndarray, rng: np.random.Generator, n_feature: int = 3000) -> np.ndarray:
    """Return a Matern-3/2 field of unit variance at positions (n, n_axis), km: (n,)."""
    axes = coords.shape[1]
    scale = np.sqrt(3.0 / rng.chisquare(3.0, (n_feature, 1)))  # Student's t of 3 degrees
    frequency = scale * rng.standard_normal((n_feature, axes)) / RANGE_KM
    phase, weight = rng.uniform(0, 2 * np.pi, n_feature), rng.standard_normal(n_feature)
    found = np.zeros(coords.shape[0])
    for start in range(0, coords.shape[0], 4096):
        part = slice(start, start + 4096)
        found[part] = np.cos(coords[part] @ frequency.T + phase) @ weight
    return found * np.sqrt(2.0 / n_feature)


def simulate(store: BagStore, seed: int, directory: Path) -> np.ndarray:
    """Write cases and clusters; return the rate of the store's pixels."""
    rng = np.random.default_rng([seed, 9])
    rows = store.read_rows(0, store.n_pix)
    x = rows.x[:, [store.covariates.index(name) for name in SLOPES]].astype(np.float64)
    log_rate = x @ np.array(list(SLOPES.values()))
    log_rate += FIELD_SD * matern_field(rows.coords, rng)
    rate = np.exp(INTERCEPT + np.clip(log_rate, -LARGEST, LARGEST))
    expected = np.add.reduceat(rows.weight * rate, store.offsets[:-1])
    noise = np.exp(AREA_SD * rng.standard_normal(expected.size) - 0.5 * AREA_SD**2)
    cases = pd.DataFrame({"district_id": store.ids, "cases": rng.poisson(expected * noise)})
    cases.to_csv(directory / "cases.csv", index=False)
    people = rows.weight / rows.weight.sum()
    chosen = rng.choice(people.size, N_POINT, replace=False, p=people)
    most = np.sort(rows.weight)[::-1]
    urban = rows.weight[chosen] >= most[np.searchsorted(np.cumsum(most), URBAN * most.sum())]
    kappa = -np.log1p(-PREVALENCE) / float(people @ rate)
    factor = np.exp(CLUSTER_SD * rng.standard_normal(N_POINT) - 0.5 * CLUSTER_SD**2)
    positive = rng.binomial(TESTED, -np.expm1(-kappa * rate[chosen] * factor))
    grid: Any = store.grid
    row, column = np.divmod(rows.pixel[chosen], grid.shape[1])
    lon, lat = grid.transform @ (
        column + rng.uniform(0, 1, N_POINT),
        row + rng.uniform(0, 1, N_POINT),
    )
    most_km = np.where(urban, 2.0, np.where(rng.random(N_POINT) < 0.01, 10.0, 5.0))
    there = Geod(ellps="WGS84").fwd(
        lon, lat, rng.uniform(0, 360, N_POINT), 1000 * rng.uniform(0, most_km)
    )
    clusters = pd.DataFrame(
        {
            "cluster": np.arange(N_POINT), "positive": positive, "examined": TESTED,
            "lon": there[0], "lat": there[1], "urban": np.where(urban, "U", "R"),
            "true_lon": lon, "true_lat": lat,
        }
    )  # fmt: skip
    clusters.to_csv(directory / "clusters.csv", index=False)
    return rate


def configured(directory: Path, arm: str) -> Path:
    """Write the configuration of an arm."""
    data = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    data["counts"]["path"] = "cases.csv"
    data["output"]["dir"] = f"out-{arm}"
    data["model"] |= {"kernel": KERNEL}
    if arm != "areas":
        place = "true_" if arm == "true" else ""
        point = {
            "name": "survey", "path": "clusters.csv", "id": "cluster", "value": "positive",
            "tested": "examined", "lon": f"{place}lon", "lat": f"{place}lat",
        }  # fmt: skip
        if arm == "both":
            point |= {"radius": "dhs", "urban": "urban"}
        data["points"] = [point]
    path = directory / f"{arm}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def alone(store: PointStore) -> VBAgg:
    """Fit the clusters alone, at their reported places."""
    found = BagBlock.join(list(store.store.blocks()))
    bags = Bags(found.x, found.offsets, found.y, found.weight, found.coords, found.trials)
    return VBAgg(kernel=KERNEL, likelihood="beta_binomial").fit(bags)


def measure(seed: int, directory: Path) -> list[dict[str, Any]]:
    """Fit and score all arms of a seed."""
    context = StageContext(load_config(EXAMPLE))
    first = context.config.model_copy(
        update={"output": context.config.output.model_copy(update={"dir": directory / "first"})}
    )
    ingest(StageContext(first))
    store = BagStore.open(directory / "first/work/bags.zarr")
    rate = simulate(store, seed, directory)
    rows = store.read_rows(0, store.n_pix)
    truth: Any = SimpleNamespace(x=rows.x.astype(np.float64), coords=rows.coords, rate=rate)
    found = []
    for arm in ARMS:
        started = time.process_time()
        if arm == "points":  # of the run with the reported places
            config = load_config(configured(directory, "reported"))
            ingest(StageContext(config))
            model: Any = alone(PointStore.open(config.output.dir / "work/points.zarr"))
        else:
            config = load_config(configured(directory, arm))
            ingest(StageContext(config))
            own = BagStore.open(config.output.dir / "work/bags.zarr").covariates
            if own != store.covariates:  # the truth's pixels have theirs in this order
                message = f"the fit's covariates are {own}, those of the truth {store.covariates}"
                raise SystemExit(message)
            fit_stage(StageContext(config))
            model = models.load(config.output.dir / "work/model")
        scores = scored(model, truth, proportions=arm == "points")
        seconds = time.process_time() - started
        found.append({"seed": seed, "arm": arm, **scores, "cpu_s": seconds})
        print({k: v for k, v in found[-1].items() if k != "hyperparameters"}, flush=True)
    return found


def means(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean of each score by arm, and its difference from the districts alone by seed."""
    of = {(r["arm"], r["seed"]): r for r in records}
    seeds = sorted({r["seed"] for r in records})
    found: dict[str, dict[str, dict[str, float]]] = {}
    for arm in ARMS:
        found[arm] = {}
        for key in ("correlation", "crps", "coverage"):
            values = np.array([of[arm, seed][key] for seed in seeds])
            gain = values - [of["areas", seed][key] for seed in seeds]
            error = gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.nan
            found[arm][key] = {
                "mean": float(values.mean()), "gain": float(gain.mean()),
                "standard_error": float(error),
            }  # fmt: skip
    return found


def main() -> None:
    """Measure, and write the JSON."""
    asked = parsed(__doc__, seeds=8, first=0)
    os.environ.setdefault("DISAGG_SHARED_DATA", str(Path(__file__).parents[2] / "shared/data"))
    numbers = range(asked.first, asked.first + asked.seeds)
    kept = read_results(PATH).get("records", [])
    records = [each for each in kept if each["seed"] not in numbers]
    for seed in numbers:
        with tempfile.TemporaryDirectory() as directory:
            records += measure(seed, Path(directory))
        write_results(PATH, {"means": means(records), "records": records})


if __name__ == "__main__":
    main()
