"""A simulated country to try everything on: inputs as they come from the field, and the truth.

Covariates follow from terrain, climate and people, each seen with noise at a resolution of its
own; cases follow from a known nonlinear surface of them, summed over people in each area.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import exactextract
import exactextract.raster
import geopandas as gpd
import numpy as np
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from rasterio.warp import Resampling, reproject, transform_bounds
from scipy import ndimage
from scipy.optimize import brentq
from scipy.special import expit

from geo.align import aligned
from geo.grid import Grid
from geo.raster import RasterSource
from pipeline.demo.boundaries import cut_country, divide, name_areas, trace
from pipeline.demo.climate import environment, rainfall, temperature
from pipeline.demo.population import settle
from pipeline.demo.terrain import Array, Mask, build_terrain, fractal_noise, named_rng

WGS84 = "EPSG:4326"
# The projection that satellite vegetation indices come in: equal-area, on a sphere.
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"
KM_PER_DEG = 111.195
RATE_RANGE = (0.002, 0.4)
# Covariates that the rate depends on; the others only look as if they might.
SURFACE = ("temperature", "rainfall", "distance_to_water", "evi", "travel_time")


@dataclass(frozen=True)
class Layer:
    """How a covariate is published.

    Attributes
    ----------
    description, unit : str
    coarser : int
        Its pixel's side in pixels of the population grid; -2 is half a pixel.
    noise : float
        Standard deviation of the measurement error, as a share of the field's own.
    gaps : bool
        Whether pixels are missing on land.
    projected : bool
        Published in the sinusoidal projection instead of longitude and latitude.
    dtype : str
    transform : str
        What the configuration asks to be done with it.
    """

    description: str
    unit: str
    coarser: int = 1
    noise: float = 0.05
    gaps: bool = False
    projected: bool = False
    dtype: str = "float32"
    transform: str = "none"


LAYERS = {
    "elevation": Layer("Elevation above the sea", "m", -2, 0.005, gaps=True, dtype="int16"),
    "temperature": Layer("Mean temperature of the year", "degC", 5),
    "rainfall": Layer("Rain in a year", "mm", 6, 0.08, transform="log1p"),
    "evi": Layer("Enhanced vegetation index", "1", noise=0.12, projected=True),
    "travel_time": Layer("Travel time to the nearest town", "min", 1, 0.02, transform="log1p"),
    "distance_to_water": Layer("Distance to a river or the sea", "km", 1, 0.0, transform="log1p"),
    "slope": Layer("Slope", "degrees", 1, 0.03, transform="log1p"),
    "topographic_wetness": Layer("Topographic wetness index", "1", 1, 0.05),
    "temperature_range": Layer("Mean daily range of temperature", "degC", 5),
    "lst_day": Layer("Land surface temperature by day", "degC", 1, 0.08, gaps=True),
    "lst_night": Layer("Land surface temperature by night", "degC", 1, 0.08, gaps=True),
    "rainfall_seasonality": Layer("Variation of rain between months", "%", 6, 0.08),
    "aridity": Layer("Rain over potential evaporation", "1", 4, transform="log1p"),
    "humidity": Layer("Relative humidity", "%", 12),
    "tree_cover": Layer("Tree cover", "%", 1, 0.1),
    "cropland": Layer("Cropland", "%", 3, 0.1),
    "soil_clay": Layer("Clay in the topsoil", "%", 2, 0.15),
    "night_lights": Layer("Lights at night", "nW cm-2 sr-1", 1, 0.02, transform="log1p"),
}


@dataclass(frozen=True)
class CountrySpec:
    """The size of a simulated country.

    Attributes
    ----------
    shape : (n_row, n_col) of the population grid
    pixel_deg : float
    n_land : int
        Pixels of the country.
    n_area : int
    n_town : int
        Towns on the map, the neighbours' included.
    people : float
    covariates : tuple of str
    n_inducing : int
    n_instance : int, optional
        Exact number of pixels in all areas that have people and covariates, a pixel on a border
        counted for each side; pixels with the fewest people lose them until it is met.
    detail : int
        Relief and roads start on pixels this many times larger.
    corner_deg : (west, north)
    """

    shape: tuple[int, int]
    pixel_deg: float
    n_land: int
    n_area: int
    n_town: int
    people: float
    covariates: tuple[str, ...] = field(default=tuple(LAYERS))
    n_inducing: int = 200
    n_instance: int | None = None
    detail: int = 1
    corner_deg: tuple[float, float] = (30.0, -1.0)

    @property
    def transform(self) -> Affine:
        """The population grid's, from pixels to degrees."""
        west, north = self.corner_deg
        return Affine(self.pixel_deg, 0.0, west, 0.0, -self.pixel_deg, north)


SIZES = {
    "small": CountrySpec(
        (190, 215), 1 / 24, 20_500, 120, 36, 9e6, covariates=tuple(LAYERS)[:6], n_inducing=200
    ),
    # As many areas, pixels and covariates as the malaria data of Law et al. (2018), section 4.3.
    "country": CountrySpec(
        (1240, 1400), 1 / 120, 1_025_000, 957, 150, 30e6, n_inducing=576, n_instance=1_044_683,
        detail=4,
    ),
}  # fmt: skip


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


def _as_measured(path: Path, true: Array, spec: CountrySpec) -> Array:
    """Bring a written layer back to the population's grid; the truth where it has a gap."""
    seen = aligned(RasterSource(path), Grid(CRS.from_user_input(WGS84), spec.transform, spec.shape))
    return np.where(np.isfinite(seen), seen, true)


def _fill(values: Array, known: Mask) -> Array:
    """Continue values from land over the sea, so that averages near a coast make sense."""
    _, (row, col) = ndimage.distance_transform_edt(
        ~known, return_indices=True, return_distances=True
    )
    return values[row, col]


def _write_tif(path: Path, values: Array, transform: Affine, crs: str, layer: Layer) -> None:
    """Write a tiled, compressed GeoTIFF; NaN (-32768 for integers) is missing."""
    integer = layer.dtype == "int16"
    if integer:
        values = np.where(np.isnan(values), -32768, np.round(values))
    with rasterio.open(
        path, "w", driver="GTiff", height=values.shape[0], width=values.shape[1], count=1,
        dtype=layer.dtype, crs=crs, transform=transform, nodata=-32768 if integer else np.nan,
        tiled=True, blockxsize=256, blockysize=256, compress="deflate",
        predictor=2 if integer else 3, zlevel=3,
    ) as out:  # fmt: skip
        out.write(values.astype(layer.dtype), 1)
        out.set_band_description(1, layer.description)
        out.set_band_unit(1, layer.unit)


def _publish(
    path: Path, true: Array, land: Mask, gap: Mask, spec: CountrySpec, layer: Layer, seed: int
) -> None:
    """Write a covariate as its makers would: blurred, noisy, on a grid of their own, with gaps."""
    rng = named_rng(seed, "sensor " + path.stem)
    error = layer.noise * float(true[land].std())
    values = _fill(true, land)
    if layer.projected:
        n_row, n_col = spec.shape
        west, north = spec.corner_deg
        bounds = (west, north - n_row * spec.pixel_deg, west + n_col * spec.pixel_deg, north)
        left, bottom, right, top = transform_bounds(WGS84, SINUSOIDAL, *bounds)
        # The satellite's own pixel, or a few of them together, always finer than the map's.
        res_m = 926.625433 * max(1, int(spec.pixel_deg * KM_PER_DEG / 2))
        shape = (int((top - bottom) / res_m) + 1, int((right - left) / res_m) + 1)
        transform = Affine(res_m, 0, left, 0, -res_m, top)
        seen = np.full(shape, np.nan)
        reproject(
            values, seen, src_transform=spec.transform, src_crs=WGS84, dst_transform=transform,
            dst_crs=SINUSOIDAL, dst_nodata=np.nan, resampling=Resampling.bilinear,
        )  # fmt: skip
        seen += error * rng.standard_normal(shape)
        _write_tif(path, seen, transform, SINUSOIDAL, layer)
        return
    if layer.coarser < 0:
        k = -layer.coarser
        seen = ndimage.zoom(values, k, order=1, grid_mode=True, mode="nearest")
        shown: Mask = (land & ~gap).repeat(k, axis=0).repeat(k, axis=1)
        transform = spec.transform @ Affine.scale(1 / k)
    else:
        k = layer.coarser
        pad = [(0, -n % k) for n in land.shape]
        blocks = tuple((n + p[1]) // k for n, p in zip(land.shape, pad, strict=True))
        cut = (blocks[0], k, blocks[1], k)
        seen = np.pad(values, pad, mode="edge").reshape(cut).mean(axis=(1, 3))
        shown = np.asarray(np.pad(land & ~gap, pad).reshape(cut).any(axis=(1, 3)))
        transform = spec.transform @ Affine.scale(k)
    seen = seen + error * rng.standard_normal(seen.shape)
    if float(true[land].min()) >= 0:
        seen = np.maximum(seen, 0)
    _write_tif(path, np.where(shown, seen, np.nan), transform, WGS84, layer)


def _gap(name: str, land: Mask, prefer: Array, missing: float, seed: int) -> Mask:
    """Choose patches of missing pixels, the more likely where `prefer` is high."""
    if missing <= 0:
        return np.zeros(land.shape, dtype=np.bool_)
    rng = named_rng(seed, "gap " + name)
    score = fractal_noise(land.shape, rng, hurst=0.0, longest=25)
    score += 0.6 * (prefer - prefer[land].mean()) / prefer[land].std()
    return land & (score > np.quantile(score[land], 1 - missing))


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


def _config(spec: CountrySpec, name: str, seed: int, *, labels: bool) -> str:
    """Write the configuration of a run on the simulated country."""
    covariates = []
    for covariate in spec.covariates:
        layer = LAYERS[covariate]
        more = "" if layer.transform == "none" else f", transform: {layer.transform}"
        note = "   # in the sinusoidal projection" if layer.projected else ""
        covariates.append(f"  {covariate}: {{path: {covariate}.tif{more}}}{note}")
    listed = "\n".join(covariates)
    model = "kind: vbagg, likelihood: poisson, area_effect: true, link: exp, "
    model += f"inducing: {spec.n_inducing}, kernel: additive"
    # Ten fits of a whole country take hours: there the truth alone judges, unless asked for more.
    schemes, note = ("[area, block]", "areas left out at random, by region")
    if spec.n_area > 500:
        model += ", precision: float32, pair_pixels: 128"
        schemes, note = ("[]", "no cross-validation; [area, block] refits the model 10 times")
    observed = "counts:      {path: cases.csv, id: area_id, value: cases}"
    fit = "fit:         {batch_areas: 32, max_epochs: 200, learning_rate: 0.05, seed: 1}"
    output = "{dir: out, rate_per: 1000, interval: 0.9, exceedance: [50, 100], draws: 500}"
    truth = "{path: truth_rate.tif}     # cases per person, known here because it is simulated"
    if labels:
        observed = "labels:      {path: outbreaks.csv, id: area_id, value: outbreak}   # 1 or 0"
        model = "kind: psi_vgpmil, options: {density: gamma}"
        fit = "fit:         {seed: 1}"
        output = "{dir: out, interval: 0.9}"
        truth = "{path: truth_hotspot.tif}   # 1 where the risk is high: here it is simulated"
    evaluate = f"evaluate:    {{folds: 5, schemes: {schemes}, seed: 1}}   # {note}"
    return f"""\
# A country simulated by `disagg demo`, seed {seed}. Run it with: disagg run disagg.yaml
name: {name}
areas:       {{path: areas.gpkg, layer: areas, id: area_id}}
{observed}
population:  {{path: population.tif}}      # people per pixel; missing outside the country
covariates:                             # each on a grid of its own
{listed}
grid:        {{like: population.tif}}
model:       {{{model}}}
{fit}
compute:     {{scheduler: local, workers: auto, device: auto, memory: auto}}
output:      {output}
{evaluate}
truth:       {truth}
"""


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
    settled = settle(
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
        layer: _gap(layer, inside, cause[layer], missing, seed)
        for layer in spec.covariates
        if LAYERS[layer].gaps
    }
    gaps["population"] = _gap("population", inside, rain, missing / 3, seed)
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
        _publish(path, fields[covariate], land, gap, spec, LAYERS[covariate], seed)
    measured = {
        name: _as_measured(directory / f"{name}.tif", fields[name], spec)
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

    counted = Layer("People per pixel", "people")
    _write_tif(directory / "population.tif", people, spec.transform, WGS84, counted)
    rates = Layer("True rate", "cases per person")
    shown = np.where(inside, rate, np.nan)
    _write_tif(directory / "truth_rate.tif", shown.astype(np.float64), spec.transform, WGS84, rates)
    if labels:
        worst = np.zeros(len(areas))
        here = exposed > 0
        np.maximum.at(worst, area[here], rate.ravel()[pixel[here]])
        high = float(np.median(worst))
        hotspots = Layer("High risk", "1", dtype="int16")
        hot = np.where(inside, rate > high, np.nan)
        _write_tif(directory / "truth_hotspot.tif", hot, spec.transform, WGS84, hotspots)
        rows = [f"{i},{int(w > high)}" for i, w in zip(areas["area_id"], worst, strict=True)]
        text = "\n".join(["area_id,outbreak", *rows]) + "\n"
        (directory / "outbreaks.csv").write_text(text, encoding="utf-8")
    (directory / "areas.gpkg").unlink(missing_ok=True)
    areas.to_file(directory / "areas.gpkg", layer="areas", driver="GPKG")
    rows = [f"{i},{n}" for i, n in zip(areas["area_id"], cases, strict=True)]
    text = "\n".join(["area_id,cases", *rows]) + "\n"
    (directory / "cases.csv").write_text(text, encoding="utf-8")
    config = directory / "disagg.yaml"
    config.write_text(_config(spec, f"simulated-{name}", seed, labels=labels), encoding="utf-8")
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
