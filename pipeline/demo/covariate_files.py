"""Covariates as their makers publish them: blurred, noisy, with gaps, on grids of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from pyproj import CRS
from rasterio.warp import Resampling, reproject, transform_bounds
from scipy import ndimage

from geo.sources.align import aligned
from geo.grids.grid import Grid
from geo.sources.registry import source_of
from pipeline.demo.country_spec import KM_PER_DEG, WGS84, CountrySpec, CovariateSpec
from pipeline.demo.terrain import Array, Mask, fractal_noise, named_rng

# The projection that satellite vegetation indices come in: equal-area, on a sphere.
SINUSOIDAL = "+proj=sinu +lon_0=0 +x_0=0 +y_0=0 +R=6371007.181 +units=m +no_defs"


def as_measured(path: Path, true: Array, spec: CountrySpec) -> Array:
    """Bring a written layer back to the population's grid; the truth where it has a gap."""
    seen = aligned(source_of(path), Grid(CRS.from_user_input(WGS84), spec.transform, spec.shape))
    return np.where(np.isfinite(seen), seen, true)


def _fill(values: Array, known: Mask) -> Array:
    """Continue values from land over the sea, so that averages near a coast make sense."""
    _, (row, col) = ndimage.distance_transform_edt(
        ~known, return_indices=True, return_distances=True
    )
    return values[row, col]


def write_raster(path: Path, values: Array, transform: Affine, crs: str, layer: CovariateSpec) -> None:
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


def write_covariate(
    path: Path, true: Array, land: Mask, gap: Mask, spec: CountrySpec, layer: CovariateSpec, seed: int
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
        write_raster(path, seen, transform, SINUSOIDAL, layer)
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
    write_raster(path, np.where(shown, seen, np.nan), transform, WGS84, layer)


def draw_gap(name: str, land: Mask, prefer: Array, missing: float, seed: int) -> Mask:
    """Choose patches of missing pixels, the more likely where `prefer` is high."""
    if missing <= 0:
        return np.zeros(land.shape, dtype=np.bool_)
    rng = named_rng(seed, "gap " + name)
    score = fractal_noise(land.shape, rng, hurst=0.0, longest=25)
    score += 0.6 * (prefer - prefer[land].mean()) / prefer[land].std()
    return land & (score > np.quantile(score[land], 1 - missing))
