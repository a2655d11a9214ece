"""A simulated country to try everything on: inputs as they come from the field, and the truth.

Covariates follow from terrain, climate and people, each seen with noise at a resolution of its
own; cases follow from a known nonlinear surface of them, summed over people in each area.
"""

from __future__ import annotations

from pathlib import Path

import exactextract
import exactextract.raster
import geopandas as gpd
import numpy as np
import shapely
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from pipeline.demo.boundaries import cut_country, divide, name_areas, trace
from pipeline.demo.configuration import demo_config
from pipeline.demo.country_spec import (
    KM_PER_DEG,
    LAYERS,
    SIZES,
    WGS84,
    CountrySpec,
    CovariateSpec,
)
from pipeline.demo.covariate_files import as_measured, draw_gap, write_covariate, write_raster
from pipeline.demo.covariates import environment, rainfall, temperature
from pipeline.demo.population import simulate_population
from pipeline.demo.terrain import Array, Mask, build_terrain, fractal_noise, named_rng

RATE_RANGE = (0.002, 0.4)
# Covariates that the rate depends on; the others only look as if they might.
SURFACE = ("temperature", "rainfall", "distance_to_water", "evi", "travel_time")


def true_rate(fields: dict[str, Array], people: Array, inside: Mask, seed: int, km: float) -> Array:
    """Cases per person in each pixel: the surface to be found again.

    Mosquitoes want warmth, but not heat, and standing water; disease lingers far from clinics;
    and something unmeasured varies smoothly in space. The covariates are taken as measured, at the
    layers' own resolution and with their errors: a function of them and of the place is what any
    map made from them can hope to find again, and its intervals should cover.

    Parameters
    ----------
    fields : dict of (n_row, n_col) float64
        The covariates named in `SURFACE`, on the population's grid.
    people : (n_row, n_col) float64
    inside : (n_row, n_col) bool
    seed : int
    km : float
        Side of a pixel.

    Returns
    -------
    (n_row, n_col) float64, within `RATE_RANGE`, 0.05 on average over the people
    """
    warm = np.exp(-0.5 * ((fields["temperature"] - 25.0) / 3.0) ** 2)
    wet = np.tanh((np.log(fields["rainfall"]) - np.log(850)) / 0.5)
    pools = np.exp(-fields["distance_to_water"] / 8.0)
    green = np.exp(-0.5 * ((fields["evi"] - 0.38) / 0.12) ** 2)
    remote = np.tanh((np.log1p(np.minimum(fields["travel_time"], 1e4)) - np.log(60)) / 0.9)
    noise = fractal_noise(
        # As smooth as a Matern-3/2 surface with a range of about 140 km.
        inside.shape,
        named_rng(seed, "unmeasured"),
        hurst=1.5,
        longest=500 / km,
    )
    score = 2.4 * warm + 0.6 * wet + 1.1 * warm * pools * (1 + 0.6 * wet) + 0.9 * green
    score = score + 0.7 * remote + 0.45 * noise
    low, high = RATE_RANGE
    weight = people[inside] / people[inside].sum()

    def excess(shift: float) -> float:
        return float(weight @ (low + (high - low) * expit(score[inside] - shift))) - 0.05

    return low + (high - low) * expit(score - brentq(excess, -20.0, 20.0))


def _membership(
    areas: gpd.GeoDataFrame, spec: CountrySpec
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Find the pixels of each area: (n,) area, pixel = row * n_col + col, fraction covered."""
    n_row, n_col = spec.shape
    west, north = spec.corner_deg
    grid = exactextract.raster.NumPyRasterSource(
        np.zeros(spec.shape, dtype=np.int8), xmin=west, xmax=west + n_col * spec.pixel_deg,
        ymin=north - n_row * spec.pixel_deg, ymax=north, srs_wkt=areas.crs.to_wkt(),
    )  # fmt: skip
    found = exactextract.exact_extract(grid, areas, ["cell_id", "coverage"], output="pandas")
    n = [len(cells) for cells in found["cell_id"]]
    pixel = np.concatenate(list(found["cell_id"])).astype(np.int64)
    fraction = np.concatenate(list(found["coverage"])).astype(np.float64)
    return np.repeat(np.arange(len(n)), n), pixel, fraction


def members_of(
    path: Path, spec: CountrySpec
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array, list[str]]:
    """Find the pixels of the areas of a file: area, pixel, fraction covered, ids of the areas."""
    areas = gpd.read_file(path)
    return *_membership(areas, spec), list(areas["area_id"])


def _empty_pixels(
    people: Array, area: NDArray[np.int64], pixel: NDArray[np.int64], n_drop: int
) -> NDArray[np.int64]:
    """Choose the emptiest pixels, `n_drop` in all areas together, out of areas with many."""
    count = np.bincount(area)
    crowded = np.flatnonzero(np.bincount(pixel, weights=count[area] < 40) > 0)
    number, times = np.unique(pixel, return_counts=True)
    free = ~np.isin(number, crowded)
    number, times = number[free], times[free]
    order = np.argsort(people.ravel()[number], kind="stable")
    number, times = number[order], times[order]
    before = int(np.searchsorted(np.cumsum(times), n_drop, side="right"))
    chosen, left = number[:before], n_drop - int(times[:before].sum())
    single = number[before:][times[before:] == 1]
    return np.concatenate([chosen, single[:left]])


def simulate_country(
    directory: str | Path,
    size: str | CountrySpec = "small",
    seed: int = 1,
    *,
    missing: float = 0.01,
    overdispersion: float | None = None,
    labels: bool = False,
) -> Path:
    """Simulate a country and write it as its health ministry and data providers would.

    Parameters
    ----------
    directory : path
        Created if need be; files of an earlier simulation in it are replaced.
    size : {"small", "country"} or CountrySpec
        "small": 120 areas, 6 covariates, pixels of 1/24 degree. "country": 957 areas, 1,044,683
        pixels, 18 covariates, pixels of 1/120 degree.
    seed : int
        The same seed gives the same pixels and counts.
    missing : float
        Share of the country's pixels that each covariate with gaps lacks; population lacks a
        third of it.
    overdispersion : float, optional
        Size of the negative binomial that counts are drawn from, variance
        mean + mean^2 / size. By default Poisson.
    labels : bool
        Tell of each area, instead of its cases, only whether there is a pixel with people in it
        where the risk is high: `outbreaks.csv`, and the truth as `truth_hotspot.tif`. High is
        what half of the areas reach somewhere.

    Returns
    -------
    Path
        The configuration, `disagg.yaml`. Beside it: a GeoTIFF for each covariate,
        `population.tif`, `areas.gpkg`, `cases.csv` and `truth_rate.tif` (cases per person).

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    name = size if isinstance(size, str) else "custom"
    if isinstance(size, str):
        if size not in SIZES:
            msg = f"size: found {size!r}; use one of {', '.join(SIZES)}"
            raise ValueError(msg)
        size = SIZES[size]
    if seed < 0:
        msg = f"seed: found {seed}; use an integer from 0"
        raise ValueError(msg)
    if not 0 <= missing <= 0.3:
        msg = f"missing: found {missing}; use a share from 0 to 0.3"
        raise ValueError(msg)
    if overdispersion is not None and overdispersion <= 0:
        msg = f"overdispersion: found {overdispersion}; use a size above 0, or None for Poisson"
        raise ValueError(msg)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)

    spec, km = size, size.pixel_deg * KM_PER_DEG
    terrain = build_terrain(spec.shape, km, seed, detail=spec.detail)
    land = terrain.land
    south = -spec.corner_deg[1] + spec.pixel_deg * (
        np.arange(spec.shape[0], dtype=np.float64) + 0.5
    )
    rain = rainfall(terrain, seed)
    inside = cut_country(land, seed, spec.n_land)
    settled = simulate_population(
        terrain, rain, seed, n_town=spec.n_town, total_people=spec.people, inside=inside,
        detail=spec.detail,
    )  # fmt: skip
    fields = environment(terrain, settled, rain, temperature(terrain, seed, south), seed)
    label = divide(terrain, settled.people, inside, spec.n_area, seed)
    areas = _areas(label, spec, seed)
    area, pixel, fraction = _membership(areas, spec)

    people = np.where(inside, np.maximum(np.round(settled.people, 2), 0.01), np.nan)
    people = people.astype(np.float32).astype(np.float64)
    # Radar sees no elevation in steep valleys, thermal sensors nothing under clouds.
    cause = {"elevation": terrain.slope, "lst_day": rain, "lst_night": rain}
    gaps = {
        layer: draw_gap(layer, inside, cause[layer], missing, seed)
        for layer in spec.covariates
        if LAYERS[layer].gaps
    }
    gaps["population"] = draw_gap("population", inside, rain, missing / 3, seed)
    usable = inside & ~np.any(list(gaps.values()), axis=0)
    # No area may lose most of its pixels.
    share = np.bincount(area, weights=usable.ravel()[pixel]) / np.bincount(
        area, weights=inside.ravel()[pixel]
    )
    spared = np.zeros(land.shape, dtype=np.bool_)
    spared.ravel()[pixel[share[area] < 0.5]] = True
    for gap in gaps.values():
        gap[spared] = False
    usable = (inside & ~np.any(list(gaps.values()), axis=0)).ravel()[pixel]
    n_usable = int(usable.sum())
    n_drop = n_usable // 100 if spec.n_instance is None else max(0, n_usable - spec.n_instance)
    people.ravel()[_empty_pixels(people, area[usable], pixel[usable], n_drop)] = 0.0
    people[gaps["population"]] = np.nan

    for covariate in spec.covariates:
        gap = gaps.get(covariate, np.zeros(land.shape, dtype=np.bool_))
        path = directory / f"{covariate}.tif"
        write_covariate(path, fields[covariate], land, gap, spec, LAYERS[covariate], seed)
    measured = {
        name: as_measured(directory / f"{name}.tif", fields[name], spec)
        if name in spec.covariates
        else fields[name]
        for name in SURFACE
    }
    rate = true_rate(measured, settled.people, inside, seed, km).astype(np.float32)
    exposed = np.nan_to_num(people).ravel()[pixel] * fraction
    burden = exposed * rate.ravel()[pixel].astype(np.float64)
    expected = np.bincount(area, weights=burden).astype(np.float64)
    rng = named_rng(seed, "counts")
    if overdispersion is not None:
        expected = expected * rng.gamma(overdispersion, 1 / overdispersion, expected.size)
    cases = rng.poisson(expected)

    counted = CovariateSpec("People per pixel", "people")
    write_raster(directory / "population.tif", people, spec.transform, WGS84, counted)
    rates = CovariateSpec("True rate", "cases per person")
    shown = np.where(inside, rate, np.nan)
    write_raster(directory / "truth_rate.tif", shown.astype(np.float64), spec.transform, WGS84, rates)
    if labels:
        worst = np.zeros(len(areas))
        here = exposed > 0
        np.maximum.at(worst, area[here], rate.ravel()[pixel[here]])
        high = float(np.median(worst))
        hotspots = CovariateSpec("High risk", "1", dtype="int16")
        hot = np.where(inside, rate > high, np.nan)
        write_raster(directory / "truth_hotspot.tif", hot, spec.transform, WGS84, hotspots)
        rows = [f"{i},{int(w > high)}" for i, w in zip(areas["area_id"], worst, strict=True)]
        text = "\n".join(["area_id,outbreak", *rows]) + "\n"
        (directory / "outbreaks.csv").write_text(text, encoding="utf-8")
    (directory / "areas.gpkg").unlink(missing_ok=True)
    areas.to_file(directory / "areas.gpkg", layer="areas", driver="GPKG")
    rows = [f"{i},{n}" for i, n in zip(areas["area_id"], cases, strict=True)]
    text = "\n".join(["area_id,cases", *rows]) + "\n"
    (directory / "cases.csv").write_text(text, encoding="utf-8")
    config = directory / "disagg.yaml"
    config.write_text(demo_config(spec, f"simulated-{name}", seed, labels=labels), encoding="utf-8")
    return config


def _areas(label: NDArray[np.int64], spec: CountrySpec, seed: int) -> gpd.GeoDataFrame:
    """Place the traced areas on the map, with identifiers and names."""
    west, north = spec.corner_deg

    def place(xy: Array) -> Array:
        return np.array([west, north]) + xy * np.array([spec.pixel_deg, -spec.pixel_deg])

    polygons = shapely.transform(np.array(trace(label, seed)), place)
    ids = [f"AR{i + 1:04d}" for i in range(spec.n_area)]
    names = name_areas(spec.n_area, seed)
    return gpd.GeoDataFrame({"area_id": ids, "name": names}, geometry=polygons, crs=WGS84)
