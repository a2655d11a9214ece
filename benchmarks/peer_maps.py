"""Contestants that map rates from areas: ours, and peers that are no sparse Gaussian process.

Each takes a :class:`benchmarks.grids.Grid` and returns a :class:`benchmarks.peer_answers.Answer`.
Libraries are imported where they are used: a contestant pays for its own alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.designs import default_model
from benchmarks.exact_areas import ExactAreas
from benchmarks.grids import Grid
from benchmarks.peer_answers import Answer, log_normal

METRES = 1000.0  # a pixel
CRS = "EPSG:6933"  # any projected one
INHABITED = 0.9  # of an area's people
SAME = 1e-4  # relative: what a method that conserves may lose by rounding


def disagg(grid: Grid) -> Answer:
    """Fit what ``disagg run`` fits by default: `benchmarks.designs.default_model`."""
    model = default_model(grid, {}).fit(grid.bags(), n_thread=1)
    told = model.predict_pixels(grid.x, grid.coords)
    if told.link != "exp":
        raise SystemExit(f"error: link {told.link}: scores here are of log-normal parts")
    centre = np.stack([part.m + np.log(part.scale) for part in told.parts])
    return log_normal(centre, np.sqrt([part.s for part in told.parts]), told.weights)


def exact_gp(grid: Grid) -> Answer:
    """Fit a dense aggregate process: `benchmarks.exact_areas`, linear + Matern-3/2 + noise.

    Laplace's method over a grid of hyperparameters, without inducing points. It is of the very
    model that drew the linear countries.
    """
    exact = ExactAreas(grid)
    base = np.log(grid.cases.sum() / grid.people.sum())
    return log_normal(exact.mean + base, exact.sd, exact.weight)


def one_rate(grid: Grid) -> Answer:
    """Give every pixel the country's rate."""
    return Answer(np.full(grid.people.size, grid.cases.sum() / grid.people.sum()))


def own_rate(grid: Grid) -> Answer:
    """Give every pixel the rate of its area."""
    return Answer(own_rates(grid)[area_of(grid)])


def tobler_areal(grid: Grid) -> Answer:
    """Interpolate by overlap: rates as intensive, counts as extensive (``area_interpolate``).

    Pixels lie inside one area, so the rates must be those of the areas, and counts must add up.
    """
    from tobler.area_weighted import area_interpolate

    areas, pixels = frames(grid)
    told = area_interpolate(areas, pixels, ["cases"], ["rate"])
    rate = told["rate"].to_numpy()
    same("tobler, areal: rates", rate, own_rates(grid)[area_of(grid)])
    conserved("tobler, areal", told["cases"].to_numpy(), grid)
    return Answer(rate, cases=told["cases"].to_numpy())


def tobler_dasymetric(grid: Grid) -> Answer:
    """Spread counts over inhabited pixels alone (``masked_area_interpolate``).

    Its mask has classes, not numbers of people: inhabited are the fewest pixels of each area that
    hold 90 % of its people. Rates are intensive; a pixel outside of the mask has none, and keeps
    its area's.
    """
    from tobler.dasymetric import masked_area_interpolate

    areas, pixels = frames(grid)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inhabited.tif"
        write_mask(grid, path)
        told = masked_area_interpolate(areas, pixels, str(path), [1], ["cases"], ["rate"], n_jobs=1)
    conserved("tobler, dasymetric", told["cases"].to_numpy(), grid)
    rate = told["rate"].to_numpy()
    own = own_rates(grid)[area_of(grid)]
    inside = told["cases"].to_numpy() > 0
    same("tobler, dasymetric: rates", rate[inside], own[inside])
    return Answer(own, cases=told["cases"].to_numpy())


def tobler_pycnophylactic(grid: Grid) -> Answer:
    """Smooth without changing the sums of areas (``pycno_interpolate``, its defaults).

    Rates are smoothed as an area's rate times its pixels, so that the mean of an area's pixels
    stays its rate; counts are smoothed as they are. Its correction passes over areas without a
    case: their pixels are set to zero here, as the method asks.
    """
    from tobler.pycno import pycno_interpolate

    areas, pixels = frames(grid)
    # Without pixels outside there is nothing to fill, which would need another library.
    told = pycno_interpolate(
        areas, pixels, ["cases", "rate_sum"], cellsize=METRES, handle_null=False
    )
    empty = grid.cases[area_of(grid)] == 0
    cases = np.where(empty, 0.0, told["cases"].to_numpy())
    rate = np.where(empty, 0.0, told["rate_sum"].to_numpy())
    conserved("tobler, pycnophylactic", cases, grid)
    sizes = np.diff(grid.offsets)
    kept = np.add.reduceat(rate, grid.offsets[:-1]) / sizes
    same("tobler, pycnophylactic: rates", kept, own_rates(grid))
    return Answer(rate, cases=cases)


def poisson_regression(grid: Grid) -> Answer:
    """Regress areas' rates on their means by scikit-learn's ``PoissonRegressor``.

    Weighted by people; the ridge penalty is chosen by five-fold cross-validation.
    """
    from sklearn.linear_model import PoissonRegressor
    from sklearn.model_selection import GridSearchCV

    means, pixels, target, people = features(grid)
    search = GridSearchCV(
        PoissonRegressor(max_iter=1000), {"alpha": np.logspace(-4, 1, 11)}, cv=5
    ).fit(means, target, sample_weight=people)
    return Answer(base_rate(grid) * search.predict(pixels))


def random_forest(grid: Grid) -> Answer:
    """Grow scikit-learn's ``RandomForestRegressor`` on means of areas.

    500 trees with Poisson splits, areas weighted by people.
    """
    from sklearn.ensemble import RandomForestRegressor

    means, pixels, target, people = features(grid)
    forest = RandomForestRegressor(500, criterion="poisson", random_state=0)
    return Answer(base_rate(grid) * forest.fit(means, target, people).predict(pixels))


def gp_of_means(grid: Grid) -> Answer:
    """Fit scikit-learn's ``GaussianProcessRegressor`` to areas' log rates at their means.

    Linear and Matern-3/2 with a length of each input, and a white term for the noise of areas;
    counts have their Poisson variance. Five restarts. Pixels are predicted without the white term.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern, WhiteKernel

    means, pixels, target, people = features(grid)
    count = target * people * base_rate(grid)
    kernel = (
        ConstantKernel(0.1) * DotProduct()
        + ConstantKernel(0.1) * Matern(np.ones(means.shape[1]), (1e-1, 1e3), nu=1.5)
        + WhiteKernel(0.05, (1e-4, 1e1))
    )
    y = np.log(np.maximum(count, 0.5) / people)
    level = float(np.average(y, weights=count + 0.5))
    fitted = GaussianProcessRegressor(
        kernel, alpha=1.0 / (count + 0.5), n_restarts_optimizer=5, random_state=0
    ).fit(means, y - level)
    mean, sd = fitted.predict(pixels, return_std=True)
    white = fitted.kernel_.k2.noise_level
    return log_normal(mean + level, np.sqrt(np.maximum(sd**2 - white, 1e-6)))


def features(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs of areas and of pixels, areas' rates over the base rate, and their people.

    Inputs are covariates and coordinates, by the deviation over pixels; of areas, means by people.
    """
    z = np.column_stack([grid.x, grid.coords])
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    area, n = area_of(grid), grid.cases.size
    people = np.bincount(area, grid.people, n)
    means = np.column_stack([np.bincount(area, grid.people * each, n) / people for each in z.T])
    return means, z, grid.cases / people / base_rate(grid), people


def frames(grid: Grid) -> tuple[Any, Any]:
    """Return areas (``cases``, ``rate``, ``rate_sum``) and pixels (``people``) as GeoDataFrames."""
    import geopandas as gpd
    from shapely import box

    x, y = METRES * grid.coords.T
    half = METRES / 2
    area = area_of(grid)
    pixels = gpd.GeoDataFrame(
        {"area": area, "people": grid.people},
        geometry=box(x - half, y - half, x + half, y + half),
        crs=CRS,
    )
    areas = pixels[["area", "geometry"]].dissolve("area").rename_axis(None)
    areas["cases"], areas["rate"] = grid.cases, own_rates(grid)
    areas["rate_sum"] = areas["rate"] * np.diff(grid.offsets)
    areas["area"] = areas.index
    return areas, pixels


def write_mask(grid: Grid, path: Path) -> None:
    """Write the pixels that hold most of each area's people as 1, others as 0."""
    import rasterio

    n = int(np.sqrt(grid.people.size))
    held = np.zeros(grid.people.size, np.uint8)
    for start, stop in zip(grid.offsets[:-1], grid.offsets[1:], strict=True):
        order = start + np.argsort(-grid.people[start:stop])
        share = np.cumsum(grid.people[order]) / grid.people[start:stop].sum()
        held[order[: 1 + np.searchsorted(share, INHABITED)]] = 1
    image = np.zeros((n, n), np.uint8)
    row, col = np.divmod(grid.pixel, n)
    image[n - 1 - row, col] = held  # rows of a raster go from north to south
    where = rasterio.Affine(METRES, 0.0, 0.0, 0.0, -METRES, n * METRES)
    with rasterio.open(
        path, "w", driver="GTiff", height=n, width=n, count=1, dtype="uint8", crs=CRS,
        transform=where, nodata=255,
    ) as file:  # fmt: skip
        file.write(image, 1)


def place_of(grid: Grid, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the places, in the grid's order, of pixels with these centres in metres."""
    n = int(np.sqrt(grid.people.size))
    place = np.empty(grid.pixel.size, np.int64)
    place[grid.pixel] = np.arange(grid.pixel.size)
    return place[np.floor(y / METRES).astype(int) * n + np.floor(x / METRES).astype(int)]


def conserved(name: str, cases: np.ndarray, grid: Grid) -> None:
    """End with an error where the pixels' cases do not add up to the counts of areas."""
    same(f"{name}: cases of areas", np.add.reduceat(cases, grid.offsets[:-1]), grid.cases)


def same(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    """End with an error where two sides that must agree do not."""
    off = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-300)
    off = np.where(found == wanted, 0.0, off)
    if not off.max() < SAME:
        raise SystemExit(f"error: {name} differ by {off.max():.2g} from what was given")


def area_of(grid: Grid) -> np.ndarray:
    """Return the area of each pixel: (n_pix,)."""
    return np.repeat(np.arange(grid.cases.size), np.diff(grid.offsets))


def own_rates(grid: Grid) -> np.ndarray:
    """Return the counted rate of each area: (n_area,)."""
    return np.asarray(grid.cases / np.bincount(area_of(grid), grid.people, grid.cases.size))


def base_rate(grid: Grid) -> float:
    """Return the counted rate of the country."""
    return float(grid.cases.sum() / grid.people.sum())
