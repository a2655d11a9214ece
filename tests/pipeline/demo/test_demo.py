"""The simulated country: reproducible, consistent with itself, and worth disaggregating."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.warp import Resampling, reproject

from pipeline.demo.boundaries import trace
from pipeline.demo.country import LAYERS, RATE_RANGE, SIZES, CountrySpec, simulate_country
from pipeline.demo.terrain import drain, fractal_noise, named_rng

TINY = CountrySpec((80, 90), 1 / 12, 3500, 30, 12, 2e6, covariates=tuple(LAYERS)[:6])


def read(path: Path) -> np.ndarray:
    with rasterio.open(path) as src:
        return src.read(1, masked=True).astype(np.float64).filled(np.nan)


@pytest.fixture(scope="module")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_country(tmp_path_factory.mktemp("country"), TINY, seed=3).parent


@pytest.fixture(scope="module")
def areas(country: Path) -> gpd.GeoDataFrame:
    return gpd.read_file(country / "areas.gpkg", layer="areas")


@pytest.fixture(scope="module")
def share(areas: gpd.GeoDataFrame) -> np.ndarray:
    return pixel_shares(areas, TINY)


def pixel_shares(areas: gpd.GeoDataFrame, spec: CountrySpec) -> np.ndarray:
    """Cover of each pixel by each area (n_area, n_pix), by cutting polygons with boxes."""
    n_row, n_col = spec.shape
    west, north = spec.corner_deg
    row, col = np.divmod(np.arange(n_row * n_col), n_col)
    d = spec.pixel_deg
    left, top = west + col * d, north - row * d
    boxes = shapely.box(left, top - d, left + d, top)
    share = np.zeros((len(areas), boxes.size))
    a, p = shapely.STRtree(boxes).query(areas.geometry.values, predicate="intersects")
    share[a, p] = shapely.area(shapely.intersection(areas.geometry.values[a], boxes[p])) / d**2
    return share


def contents(directory: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(directory.glob("*.tif")):
        with rasterio.open(path) as src:
            found[path.name] = src.read(1).tobytes()
    found["cases"] = (directory / "cases.csv").read_bytes()
    found["yaml"] = (directory / "disagg.yaml").read_bytes()
    found["areas"] = b"".join(gpd.read_file(directory / "areas.gpkg").geometry.to_wkb())
    return found


def test_same_seed_same_country_another_seed_another(country: Path, tmp_path: Path) -> None:
    again = simulate_country(tmp_path / "again", TINY, seed=3).parent
    other = simulate_country(tmp_path / "other", TINY, seed=4).parent
    first = contents(country)
    assert contents(again) == first
    assert all(first[name] != value for name, value in contents(other).items())


def test_areas_are_a_coverage_with_wandering_borders(areas: gpd.GeoDataFrame) -> None:
    assert len(areas) == TINY.n_area
    assert areas["area_id"].is_unique
    assert areas["name"].is_unique
    assert areas.geometry.is_valid.all()
    assert shapely.coverage_is_valid(areas.geometry.values)
    # No gaps: the union has as much ground as the areas, and no holes.
    union = shapely.coverage_union_all(areas.geometry.values)
    assert union.area == pytest.approx(shapely.area(areas.geometry.values).sum(), rel=1e-12)
    assert all(len(part.interiors) == 0 for part in shapely.get_parts(union))
    # Borders leave the pixels' edges.
    west, north = TINY.corner_deg
    xy = shapely.get_coordinates(areas.geometry.values)
    steps = (xy - [west, north]) / TINY.pixel_deg
    on_edge = (np.abs(steps - np.round(steps)) < 1e-6).any(axis=1)
    assert on_edge.mean() < 0.01
    size = shapely.area(areas.geometry.values)
    assert size.max() / size.min() > 10


@pytest.mark.ci
def test_counts_are_poisson_about_people_times_rate_or_overdispersed(tmp_path: Path) -> None:
    def simulated(seed: int, **how: float) -> tuple[pd.Series, np.ndarray]:
        out = simulate_country(tmp_path / f"{seed}{len(how)}", TINY, seed=seed, **how).parent
        areas, cases = gpd.read_file(out / "areas.gpkg"), pd.read_csv(out / "cases.csv")
        assert list(cases["area_id"]) == list(areas["area_id"])
        burden = np.nan_to_num(read(out / "population.tif") * read(out / "truth_rate.tif"))
        return cases["cases"], pixel_shares(areas, TINY) @ burden.ravel()

    pulls = []
    for seed in (5, 6):
        cases, expected = simulated(seed)
        pulls.append((cases - expected) / np.sqrt(expected))
    pull = np.concatenate(pulls)
    assert abs(pull.mean()) < 4 / np.sqrt(pull.size)
    assert 0.65 < pull.std() < 1.4
    size = 4.0
    cases, expected = simulated(3, overdispersion=size)
    assert 0.6 < ((cases - expected) / np.sqrt(expected + expected**2 / size)).std() < 1.5
    assert ((cases - expected) / np.sqrt(expected)).std() > 3


def test_truth_is_bounded_varies_inside_areas_and_small_areas_hold_towns(
    country: Path, areas: gpd.GeoDataFrame, share: np.ndarray
) -> None:
    rate, people = read(country / "truth_rate.tif"), read(country / "population.tif")
    known = np.isfinite(rate)
    low, high = RATE_RANGE
    assert low <= rate[known].min() < 0.02
    assert 0.15 < rate[known].max() <= high
    assert np.nansum(rate * people) / np.nansum(people) == pytest.approx(0.05, abs=0.003)
    weight = share * np.nan_to_num(people).ravel()
    held, size = weight.sum(axis=1), shapely.area(areas.geometry.values)
    assert (held > 0).all()
    assert np.corrcoef(np.log(size), np.log(held / size))[0, 1] < -0.5
    weight /= held[:, None]
    log_rate = np.log(np.where(known, rate, 1)).ravel()
    inside = np.sqrt(weight @ log_rate**2 - (weight @ log_rate) ** 2)
    assert np.median(inside) > 0.2


def test_rates_can_be_learnt_from_covariates(
    country: Path, areas: gpd.GeoDataFrame, share: np.ndarray
) -> None:
    people = np.nan_to_num(read(country / "population.tif"))
    share = share * people.ravel()
    held = share.sum(axis=1)
    columns = [np.ones(len(areas))]
    with rasterio.open(country / "population.tif") as grid:
        for name in TINY.covariates:
            with rasterio.open(country / f"{name}.tif") as src:
                seen = np.full(grid.shape, np.nan)
                finer = src.res[0] < grid.res[0] or src.crs != grid.crs
                reproject(
                    rasterio.band(src, 1), seen, dst_transform=grid.transform, dst_crs=grid.crs,
                    dst_nodata=np.nan,
                    resampling=Resampling.average if finer else Resampling.nearest,
                )  # fmt: skip
            flat = seen.ravel()
            got = np.isfinite(flat)
            mean = share[:, got] @ flat[got] / share[:, got].sum(axis=1)
            columns.append((mean - mean.mean()) / mean.std())
    rate = np.log(pd.read_csv(country / "cases.csv")["cases"].to_numpy() / held)
    design = np.column_stack(columns)
    fitted = design @ np.linalg.lstsq(design, rate, rcond=None)[0]
    assert 1 - np.var(rate - fitted) / np.var(rate) > 0.4


def test_every_area_keeps_usable_pixels_when_much_is_missing(tmp_path: Path) -> None:
    out = simulate_country(tmp_path, TINY, seed=2, missing=0.2).parent
    people, elevation = read(out / "population.tif"), read(out / "elevation.tif")
    fine = np.isfinite(elevation).reshape(80, 2, 90, 2).any(axis=(1, 3))
    country_pixels = np.isfinite(read(out / "truth_rate.tif"))
    assert 0.1 < (~fine & country_pixels).sum() / country_pixels.sum() < 0.25
    usable = (np.nan_to_num(people) > 0) & fine
    areas = gpd.read_file(out / "areas.gpkg")
    assert ((pixel_shares(areas, TINY) > 0) @ usable.ravel().astype(int) >= 3).all()


def test_number_of_pixels_in_areas_is_met_and_nothing_missing_when_asked(tmp_path: Path) -> None:
    spec = dataclasses.replace(TINY, n_instance=3800)
    out = simulate_country(tmp_path, spec, seed=3, missing=0.0).parent
    people = read(out / "population.tif")
    known = np.isfinite(read(out / "truth_rate.tif"))
    np.testing.assert_array_equal(np.isfinite(people), known)
    share = pixel_shares(gpd.read_file(out / "areas.gpkg"), TINY)
    # Slivers thinner than a millionth are lost in the box cutter's rounding.
    inside = (share > 0) & (np.nan_to_num(people).ravel() > 0)
    assert abs(int(inside.sum()) - 3800) <= 2


def test_layers_have_grids_of_their_own_and_the_configuration_names_them(country: Path) -> None:
    crs, sizes = set(), set()
    for name in TINY.covariates:
        with rasterio.open(country / f"{name}.tif") as src:
            crs.add(src.crs.to_wkt())
            sizes.add(src.res)
            assert src.profile["tiled"]
            assert src.compression.name == "deflate"
            assert src.units[0] == LAYERS[name].unit
            assert src.nodata is not None
    assert len(crs) == 2
    assert len(sizes) >= 4
    config = yaml.safe_load((country / "disagg.yaml").read_text())
    paths = [config[key]["path"] for key in ("areas", "counts", "population", "truth")]
    paths += [covariate["path"] for covariate in config["covariates"].values()]
    assert all((country / path).is_file() for path in paths)
    assert config["areas"]["layer"] == "areas"
    assert config["model"]["link"] == "exp"
    assert list(config["covariates"]) == list(TINY.covariates)
    large = SIZES["country"]  # that of the paper
    assert (large.n_area, large.n_instance, len(large.covariates)) == (957, 1_044_683, 18)
    assert large.n_inducing == 576


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"size": "huge"}, "small, country"),
        ({"seed": -1}, "seed: found -1"),
        ({"missing": 0.9}, "missing: found 0.9"),
        ({"overdispersion": 0.0}, "overdispersion: found 0.0"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, arguments: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        simulate_country(tmp_path / "none", **arguments)
    assert not (tmp_path / "none").exists()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), n_row=st.integers(2, 14), n_col=st.integers(2, 14))
def test_water_reaches_the_sea_and_none_is_lost(seed: int, n_row: int, n_col: int) -> None:
    rng = np.random.default_rng(seed)
    land = rng.random((n_row, n_col)) < 0.8
    land[0, 0] = True
    z = rng.random(land.shape) * 100
    water = drain(z, land)
    n_land = int(land.sum())
    amount = np.append(rng.random(n_land), 0.0)
    total = water.accumulate(amount)
    assert total[-1] == pytest.approx(amount.sum())
    # Water takes the steepest way down, unless a pit is there that spills back up this way.
    index = np.full((n_row + 2, n_col + 2), -1)
    index[1:-1, 1:-1][land] = np.arange(n_land)
    padded = np.pad(z, 1)
    for i, (row, col) in enumerate(np.argwhere(land) + 1):
        around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
        down = [
            ((z[row - 1, col - 1] - padded[row + a, col + b]) / np.hypot(a, b), receiver)
            for a, b in around
            if (receiver := index[row + a, col + b]) >= 0
        ]
        at_sea = any((index[row + a, col + b] < 0) for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0)))
        best = max(down, default=(0.0, -1))
        if best[0] > 0 and not at_sea:
            assert best[1] == water.receiver[i] or i == water.receiver[best[1]]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_labels_trace_to_a_coverage_of_about_their_size(seed: int) -> None:
    rng = named_rng(seed, "test")
    seats = rng.integers(0, 40, size=(6, 2))
    row, col = np.mgrid[:40, :40]
    shift = 3 * fractal_noise((40, 40), rng)
    far = [(row - r + shift) ** 2 + (col - c) ** 2 for r, c in seats]
    label = np.argmin(far, axis=0)
    _, label = np.unique(label, return_inverse=True)
    label = label.reshape(40, 40)
    polygons = np.array(trace(label, seed))
    assert shapely.is_valid(polygons).all()
    assert shapely.coverage_is_valid(polygons)
    pixels = np.bincount(label.ravel())
    np.testing.assert_allclose(shapely.area(polygons), pixels, atol=8, rtol=0.25)
