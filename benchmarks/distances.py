"""Distances of three kinds of positions against those along the ellipsoid, and the kernel's cost.

``python -m benchmarks.distances`` writes ``results/distances.json``; ``docs/design/distances.md``
quotes it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from pyproj import CRS, Geod, Transformer

from geo.grids.grid import Grid
from geo.grids.positions import Positions, positions_about
from models.gp.kernel_text import parse_kernel

RESULTS = Path(__file__).parent / "results" / "distances.json"
#: West, south, east, north, degrees.
PLACES = {
    "Madagascar": (43, -26, 51, -11),
    "Indonesia": (95, -11, 141, 6),
    "Chile": (-76, -56, -66, -17),
    "Fiji": (176, -21, 182, -12),
    "Russia": (27, 41, 190, 78),
    "Antarctica": (-180, -90, 180, -65),
    "the Earth": (-180, -90, 180, 90),
}
N_POINT, N_PAIR = 3000, 200_000
NEAR_KM = 300.0


def sample(bounds: tuple[float, float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return points uniform by area within bounds: longitude and latitude."""
    rng = np.random.default_rng(0)
    low, high = np.sin(np.radians(bounds[1::2]))
    lat = np.degrees(np.arcsin(rng.uniform(low, high, N_POINT)))
    return rng.uniform(bounds[0], bounds[2], N_POINT), lat


def positions(
    name: str, lon: np.ndarray, lat: np.ndarray, about: tuple[float, float]
) -> np.ndarray:
    """Return the positions of points, km, by one of the ways compared."""
    if name == "chord":
        grid = Grid.from_bounds("EPSG:4326", (-180, -90, 180, 90), 0.05)
        row, col = (90 - lat) / 0.05 - 0.5, (lon + 180) / 0.05 - 0.5
        pixel = grid.pixel_index(np.floor(row + 0.5), np.floor(col + 0.5) % grid.shape[1])
        return Positions(grid, positions_about(grid, pixel).crs).km(row, col)
    crs = CRS.from_proj4(f"+proj={name} +lat_0={about[1]} +lon_0={about[0]} +ellps=WGS84")
    x, y = Transformer.from_crs(4326, crs, always_xy=True).transform(lon, lat)
    return np.column_stack([x, y]) / 1000


def errors(bounds: tuple[float, float, float, float]) -> dict[str, dict[str, float]]:
    """Return the largest relative errors of each way, over all pairs and over near ones."""
    lon, lat = sample(bounds)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, N_POINT, (2, N_PAIR))
    # Near pairs, too: a step of up to 300 km from each point.
    step = rng.normal(0, 100, (2, N_POINT)) / 111.0
    lat_2 = np.clip(lat + step[1], -89.9, 89.9)
    lon_2 = lon + step[0] / np.cos(np.radians(lat_2))
    lon, lat = np.concatenate([lon, lon_2]), np.concatenate([lat, lat_2])
    a, b = np.append(a, np.arange(N_POINT)), np.append(b, N_POINT + np.arange(N_POINT))
    true = Geod(ellps="WGS84").inv(lon[a], lat[a], lon[b], lat[b])[2] / 1000
    keep = true > 1.0
    about = (0.5 * (bounds[0] + bounds[2]), 0.5 * (bounds[1] + bounds[3]))
    if bounds[2] - bounds[0] == 360 and bounds[1] == -90 and bounds[3] < 0:
        about = (0.0, -90.0)
    found = {}
    for name in ("laea", "aeqd", "chord"):
        at = positions(name, lon, lat, about)
        distance = np.linalg.norm(at[a] - at[b], axis=1)
        error = np.abs(distance / true - 1)[keep]
        near = true[keep] < NEAR_KM
        finite = np.isfinite(error)
        found[name] = {
            "largest": float(error[finite].max()),
            "largest_near": float(error[near & finite].max()),
            "lost": int((~finite).sum()),
        }
    found["extent_km"] = {"largest": float(true.max())}
    return found


def kernel_seconds(n_axis: int) -> float:
    """Return the seconds of this thread for the spatial kernel of a block, value and gradient."""
    rng = np.random.default_rng(0)
    kernel = parse_kernel("additive", 7, has_coords=True, n_axis=n_axis)
    z, w = rng.normal(size=(4096, 7 + n_axis)), rng.normal(size=(200, 7 + n_axis))
    theta = kernel.start(1.0)
    best = np.inf
    for _ in range(20):
        started = time.thread_time()
        k, cache = kernel.forward(theta, z, w)
        kernel.backward(theta, z, w, cache, k, want_w=True)
        best = min(best, time.thread_time() - started)
    return best


def smallest_eigenvalue(distance: np.ndarray, lengthscale: float) -> float:
    """Return the smallest eigenvalue of the Matern 3/2 kernel of some distances."""
    r = np.sqrt(3.0) * distance / lengthscale
    return float(np.linalg.eigvalsh((1 + r) * np.exp(-r))[0])


def on_the_earth() -> dict[str, float]:
    """Return the smallest eigenvalues of the kernel of arcs and of chords over the whole Earth."""
    lon, lat = sample(PLACES["the Earth"])
    lon, lat = lon[:1000], lat[:1000]
    i, j = np.meshgrid(np.arange(lon.size), np.arange(lon.size))
    arc = Geod(ellps="WGS84").inv(lon[i], lat[i], lon[j], lat[j])[2] / 1000
    at = positions("chord", lon, lat, (0.0, 0.0))
    chord = np.linalg.norm(at[:, None] - at[None], axis=2)
    return {
        f"{name} {scale:g}": smallest_eigenvalue(distance, scale)
        for scale in (5000.0, 20_000.0)
        for name, distance in (("arc", arc), ("chord", chord))
    }


def main() -> None:
    """Measure and write."""
    found = {
        "errors": {name: errors(bounds) for name, bounds in PLACES.items()},
        "smallest_eigenvalue": on_the_earth(),
        "kernel_seconds": {str(n): kernel_seconds(n) for n in (2, 3)},
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
