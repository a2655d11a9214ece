"""Where a survey cluster may truly be, whose coordinates were displaced to protect its people.

Demographic and Health Surveys move each cluster by a random angle and a random distance, both
uniform: up to 2 km in towns, up to 5 km elsewhere, and one in a hundred of the latter up to 10 km
(Burgert et al. 2013, DHS Spatial Analysis Reports 7). The density of the true place around the
reported one falls as ``1 / distance``.
"""

from __future__ import annotations

from dataclasses import dataclass

import geopandas as gpd
import numpy as np
import shapely
from pyproj import Geod, Transformer

from geo.grids.grid import Grid
from geo.grids.membership import membership

N_ANGLE, N_DISTANCE = 48, 30
N_CORNER = 72  # of the polygon that stands for a circle
_GEOD = Geod(ellps="WGS84")

#: A law of displacement: the largest distance, km, and its share of the clusters.
Law = tuple[tuple[float, float], ...]
URBAN: Law = ((2.0, 1.0),)
RURAL: Law = ((5.0, 0.99), (10.0, 0.01))


@dataclass(frozen=True)
class Candidates:
    """Pixels where each point may be, one point after the other (CSR).

    Attributes
    ----------
    offsets : (n_point + 1,) int64
    pixel : (n,) int64
        Number in the grid, ``row * n_col + col``; ascending within a point.
    mass : (n,) float64
        Probability of the displacement from there; adds up to 1, or to less at the grid's edge.
    """

    offsets: np.ndarray
    pixel: np.ndarray
    mass: np.ndarray


def displacements(law: Law) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return angles (degrees), distances (km) and probabilities that stand for a law: (n,) each.

    Midpoints of strata of equal probability in angle and distance.
    """
    angle = (np.arange(N_ANGLE) + 0.5) * 360.0 / N_ANGLE
    step = (np.arange(N_DISTANCE) + 0.5) / N_DISTANCE
    parts = [
        (np.repeat(angle, N_DISTANCE), radius * np.tile(step, N_ANGLE), share)
        for radius, share in law
    ]
    n = N_ANGLE * N_DISTANCE
    return (
        np.concatenate([a for a, _, _ in parts]),
        np.concatenate([d for _, d, _ in parts]),
        np.concatenate([np.full(n, share / n) for _, _, share in parts]),
    )


def candidates(grid: Grid, lon: np.ndarray, lat: np.ndarray, laws: list[Law]) -> Candidates:
    """Find the pixels where displaced points may be.

    Parameters
    ----------
    grid : Grid
    lon, lat : (n_point,) float64, degrees
        Reported places.
    laws : list of Law
        Of each point; of radius 0, the pixel that it is in.
    """
    made = {law: displacements(law) for law in set(laws)}
    return _gathered(grid, lon, lat, [made[law] for law in laws])


def catchments(grid: Grid, lon: np.ndarray, lat: np.ndarray, radius: float) -> Candidates:
    """Find the pixels within ``radius`` km of each point, and the share of each that is within.

    Arguments are as of :func:`candidates`; ``mass`` is the share, in (0, 1].
    """
    angle = np.arange(N_CORNER) * 360.0 / N_CORNER
    rings = []
    for here in zip(lon.tolist(), lat.tolist(), strict=True):
        ones = np.ones(N_CORNER)
        east, north, _ = _GEOD.fwd(here[0] * ones, here[1] * ones, angle, 1000.0 * radius * ones)
        rings.append(shapely.Polygon(np.column_stack([east, north])))
    found = membership(gpd.GeoSeries(rings, crs="EPSG:4326").to_crs(grid.crs), grid)
    return Candidates(
        found.offsets, found.pixel.astype(np.int64), found.fraction.astype(np.float64)
    )


def _gathered(
    grid: Grid,
    lon: np.ndarray,
    lat: np.ndarray,
    around: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> Candidates:
    """Put places around each point, with their masses, together by pixel."""
    sizes, pixels, masses = [], [], []
    for here, (angle, distance, mass) in zip(np.column_stack([lon, lat]), around, strict=True):
        lons, lats = np.full(angle.size, here[0]), np.full(angle.size, here[1])
        east, north, _ = _GEOD.fwd(lons, lats, angle, 1000.0 * distance)
        pixel, inside = _places(grid, east, north)
        own, which = np.unique(pixel[inside], return_inverse=True)
        sizes.append(own.size)
        pixels.append(own)
        masses.append(np.bincount(which, mass[inside], own.size))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    none = np.zeros(0)
    return Candidates(
        offsets, np.concatenate([none, *pixels]).astype(np.int64), np.concatenate([none, *masses])
    )


def _places(grid: Grid, lon: np.ndarray, lat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixel of each place, and whether it is on the grid: (n,)."""
    to_grid = Transformer.from_crs("EPSG:4326", grid.crs, always_xy=True)
    col, row = ~grid.transform @ to_grid.transform(np.asarray(lon), np.asarray(lat))
    known = np.isfinite(col) & np.isfinite(row)
    col, row = (np.floor(np.where(known, each, -1.0)).astype(np.int64) for each in (col, row))
    inside = (col >= 0) & (row >= 0) & (row < grid.shape[0]) & (col < grid.shape[1])
    return row * grid.shape[1] + col, inside
