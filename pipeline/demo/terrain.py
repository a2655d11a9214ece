"""Terrain of the simulated country: coast, eroded relief and rivers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# One of the two directions of each of the eight neighbours of a pixel: row, column, length.
NEIGHBOURS = ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 2**0.5), (1, -1, 2**0.5))

LAND_SHARE = 0.78  # the rest is sea, to the east and south
N_STEP = 25  # of the first erosion


@dataclass(frozen=True)
class Terrain:
    """Land and its relief on one raster of square pixels.

    Attributes
    ----------
    land : (n_row, n_col) bool
    elevation : (n_row, n_col) float64, metres; 0 on the sea
    slope : (n_row, n_col) float64, degrees
    flow : (n_row, n_col) float64, km2 drained through each pixel; 0 on the sea
    river : (n_row, n_col) bool
    coast_km, water_km : (n_row, n_col) float64
        Distance to the sea, and to the nearest river or the sea.
    pixel_km : float
    """

    land: Mask
    elevation: Array
    slope: Array
    flow: Array
    river: Mask
    coast_km: Array
    water_km: Array
    pixel_km: float


def named_rng(seed: int, name: str) -> np.random.Generator:
    """Return a generator of its own for each field, so that adding one changes no other."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def fractal_noise(
    shape: tuple[int, int],
    rng: np.random.Generator,
    *,
    hurst: float = 0.8,
    longest: float | None = None,
) -> Array:
    """Draw Gaussian noise with the spectrum of a fractal surface.

    Parameters
    ----------
    shape : (n_row, n_col)
    rng : numpy.random.Generator
    hurst : float
        0 is rough, 1 is smooth; amplitudes fall as frequency to the power -(1 + hurst).
    longest : float, optional
        Wavelength in pixels beyond which amplitudes stay level. By default the raster's size.

    Returns
    -------
    (n_row, n_col) float64, with mean 0 and standard deviation 1
    """
    # The transform is periodic; a wider canvas keeps opposite edges from mirroring each other.
    canvas = tuple(scipy.fft.next_fast_len(int(1.25 * n) + 8, real=True) for n in shape)
    corner = 1.0 / (longest if longest is not None else max(shape))
    frequency2 = (
        scipy.fft.fftfreq(canvas[0])[:, None] ** 2 + scipy.fft.rfftfreq(canvas[1])[None, :] ** 2
    )
    spectrum = scipy.fft.rfft2(rng.standard_normal(canvas))
    spectrum *= (frequency2 + corner**2) ** (-(1.0 + hurst) / 2)
    noise = scipy.fft.irfft2(spectrum, s=canvas)[: shape[0], : shape[1]]
    return (noise - noise.mean()) / noise.std()


def grid_edges(
    index: NDArray[np.int64],
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    """List the pairs of neighbouring pixels, once each.

    Parameters
    ----------
    index : (n_row, n_col) int64
        Number of each pixel as a node; negative where there is none.

    Returns
    -------
    list of (from, to, length): one entry for each of the four directions
    """
    n_row, n_col = index.shape
    edges = []
    for d_row, d_col, length in NEIGHBOURS:
        left, right = max(0, -d_col), n_col - max(0, d_col)
        a = index[: n_row - d_row, left:right]
        b = index[d_row:, left + d_col : right + d_col]
        both = (a >= 0) & (b >= 0)
        edges.append((a[both], b[both], length))
    return edges


@dataclass(frozen=True)
class Drainage:
    """Where the water of each land pixel goes.

    Nodes are land pixels, in row order; one more, the last, stands for the sea.

    Attributes
    ----------
    receiver : (n_node,) int64, the node that each drains into; -1 for the sea
    length : (n_node,) float64, pixels to the receiver
    levels : list of int arrays, nodes by their number of steps to the sea, the sea left out
    """

    receiver: NDArray[np.int64]
    length: Array
    levels: list[NDArray[np.int64]]

    def accumulate(self, amount: Array) -> Array:
        """Sum (n_node,) amounts downstream, each node's own included."""
        total = amount.astype(np.float64)
        for nodes in reversed(self.levels):
            np.add.at(total, self.receiver[nodes], total[nodes])
        return total


def drain(elevation: Array, land: Mask) -> Drainage:
    """Route water to the sea or off the map: steepest descent, over the lowest saddle from a pit.

    The minimum spanning tree of the pixels, an edge weighing as much as its higher end less a part
    of its drop, holds the steepest descent of every pixel that has one (it is the pixel's lightest
    edge) and leaves each pit by its lowest way out: what a priority flood finds, without its queue.
    """
    index = np.full(land.shape, -1, dtype=np.int64)
    n_land = int(land.sum())
    index[land] = np.arange(n_land)
    z = elevation[land]
    starts, ends, weights = [], [], []
    for a, b, length in grid_edges(index):
        high, low = np.maximum(z[a], z[b]), np.minimum(z[a], z[b])
        starts.append(a)
        ends.append(b)
        weights.append(high - 0.5 * (high - low) / length)
    by_sea = land & ndimage.binary_dilation(~land, border_value=1)
    outlet = index[by_sea]
    starts.append(outlet)
    ends.append(np.full(outlet.size, n_land))
    weights.append(0.5 * z[outlet])
    weight = np.concatenate(weights)
    weight += 1.0 - weight.min()  # an edge of weight 0 would be no edge
    graph = coo_array(
        (weight, (np.concatenate(starts), np.concatenate(ends))), shape=(n_land + 1, n_land + 1)
    )
    tree = minimum_spanning_tree(csr_array(graph))
    order, parent = breadth_first_order(tree, n_land, directed=False, return_predecessors=True)
    receiver = parent.astype(np.int64)
    receiver[n_land] = -1
    # A breadth-first order holds the levels one after another.
    place = np.empty(n_land + 1, dtype=np.int64)
    place[order] = np.arange(order.size)
    parent_place = place[receiver[order[1:]]]
    levels, begin, end = [], 0, 1
    while end < order.size:
        after = 1 + int(np.searchsorted(parent_place, end, side="left"))
        levels.append(order[end:after].astype(np.int64))
        begin, end = end, after
        if end == begin:
            break
    row, col = (np.append(v, 0) for v in np.nonzero(land))
    length = np.hypot(row - row[receiver], col - col[receiver])
    length[receiver == n_land] = 1.0
    length[n_land] = 1.0
    return Drainage(receiver, length, levels)


def erode(elevation: Array, land: Mask, uplift: Array, strength: float) -> Array:
    """Take one implicit step of stream-power erosion with uplift.

    References
    ----------
    Braun and Willett (2013), Geomorphology 180-181, equations 17-23, with exponents 0.45 and 1.
    """
    water = drain(elevation, land)
    z = np.append(elevation[land] + uplift[land], 0.0)
    area = water.accumulate(np.append(np.ones(z.size - 1), 0.0))
    factor = strength * area**0.45 / water.length
    for nodes in water.levels:
        f = factor[nodes]
        z[nodes] = (z[nodes] + f * z[water.receiver[nodes]]) / (1 + f)
    out = np.zeros_like(elevation)
    out[land] = z[:-1]
    return out


def _coast(shape: tuple[int, int], seed: int) -> Mask:
    """Cut a coast to the east and south of a continent, with islands and bays."""
    row, col = np.meshgrid(np.linspace(0, 1, shape[0]), np.linspace(0, 1, shape[1]), indexing="ij")
    field = 1.05 * col + 0.40 * row + 0.9 * (row - 0.45) ** 2
    field -= 0.16 * fractal_noise(shape, named_rng(seed, "coast"), hurst=0.55)
    land = field < np.quantile(field, LAND_SHARE)
    land = ndimage.binary_fill_holes(ndimage.binary_opening(land, iterations=1))
    label, n = ndimage.label(land)
    size = np.bincount(label.ravel(), minlength=n + 1)
    keep = size >= 20
    keep[0] = False
    return keep[label]


def _relief(land: Mask, seed: int, detail: int) -> Array:
    """Raise mountains and let rivers cut them: coarse first, then detail by detail."""
    n_row, n_col = land.shape
    shape = (-(-n_row // detail), -(-n_col // detail))
    small_land = land[::detail, ::detail][: shape[0], : shape[1]]
    rng = named_rng(seed, "relief")
    far = ndimage.distance_transform_edt(small_land) / max(shape)
    belts = 1 - np.abs(fractal_noise(shape, rng, hurst=0.95, longest=max(shape) / 1.6)) / 0.9
    # The belts follow a contour, a closed line: wear them away in places, or ranges are rings.
    belts *= np.clip(0.6 + 0.6 * fractal_noise(shape, rng, hurst=0.9), 0.05, None)
    uplift = np.clip(belts, 0, None) ** 1.5 + 0.12
    uplift *= 1 - np.exp(-far / 0.06)
    uplift *= np.exp(0.35 * fractal_noise(shape, rng, hurst=0.6))
    z = np.where(small_land, 5 + 200 * far + 8 * rng.random(shape), 0.0)
    for _ in range(N_STEP):
        z = erode(z, small_land, 60 * uplift, 0.06)
    if detail > 1:
        z = ndimage.zoom(z, detail, order=1, grid_mode=True, mode="nearest")[:n_row, :n_col]
        up = ndimage.zoom(uplift, detail, order=1, grid_mode=True, mode="nearest")[:n_row, :n_col]
        z = ndimage.gaussian_filter(z, detail / 2)
        rough = fractal_noise(land.shape, rng, hurst=0.75, longest=12.0 * detail)
        relief = ndimage.gaussian_filter(np.abs(z - ndimage.gaussian_filter(z, 3 * detail)), detail)
        z = np.where(land, np.maximum(z + (6 + 0.9 * relief) * rough, 1.0), 0.0)
        z = erode(z, land, 8 * up, 0.03)
        z = erode(z, land, 8 * up, 0.03)
    top = np.quantile(z[land], 0.998)
    scaled = 2600 * (z / top) ** 1.1
    return np.where(land, np.clip(scaled, 1.0, 4500), 0.0)


def build_terrain(
    shape: tuple[int, int],
    pixel_km: float,
    seed: int,
    *,
    detail: int = 1,
) -> Terrain:
    """Simulate a piece of a continent.

    Parameters
    ----------
    shape : (n_row, n_col)
    pixel_km : float
        Side of a pixel.
    seed : int
    detail : int
        Erosion runs on pixels this many times larger first.
    """
    land = _coast(shape, seed)
    elevation = _relief(land, seed, detail)
    water = drain(elevation, land)
    flow = np.zeros(shape)
    amount = np.append(np.full(int(land.sum()), pixel_km**2), 0.0)
    flow[land] = water.accumulate(amount)[:-1]
    river = flow > max(400.0, 12 * pixel_km**2)
    d_row, d_col = np.gradient(elevation, pixel_km * 1000)
    coast_km = ndimage.distance_transform_edt(land) * pixel_km
    water_km = ndimage.distance_transform_edt(land & ~river) * pixel_km
    slope = np.degrees(np.arctan(np.hypot(d_row, d_col)))
    return Terrain(land, elevation, slope, flow, river, coast_km, water_km, pixel_km)
