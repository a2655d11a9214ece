"""Population of the simulated country: towns, roads between them, travel time and people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rasterio.features import rasterize
from scipy import ndimage
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from pipeline.demo.terrain import Array, Terrain, fractal_noise, grid_edges, named_rng


@dataclass(frozen=True)
class PopulationMap:
    """Where people live and how they travel.

    Attributes
    ----------
    town : (n_town, 2) int64, row and column; the first is the capital, the largest
    town_people : (n_town,) float64
    road : (n_row, n_col) bool
    travel_min : (n_row, n_col) float64, minutes to the nearest town; infinite on the sea
    people : (n_row, n_col) float64, people per pixel; 0 on the sea
    """

    town: NDArray[np.int64]
    town_people: Array
    road: NDArray[np.bool_]
    travel_min: Array
    people: Array


def cost_graph(
    friction: Array, inside: NDArray[np.bool_], step: Array | None = None, step_cost: float = 0.0
) -> csr_array:
    """Connect neighbouring pixels by the cost of going from one to the other.

    Parameters
    ----------
    friction : (n_row, n_col) float64, cost for one pixel's length
    inside : (n_row, n_col) bool, the pixels that can be entered; the graph's nodes in row order
    step : (n_row, n_col) float64, optional
        A quantity whose change between two pixels costs `step_cost` per unit on top.
    step_cost : float

    Returns
    -------
    (n_inside, n_inside) csr_array, upper triangle
    """
    index = np.full(inside.shape, -1, dtype=np.int64)
    n_node = int(inside.sum())
    index[inside] = np.arange(n_node)
    f = friction[inside]
    s = None if step is None else step[inside]
    starts, ends, weights = [], [], []
    for a, b, length in grid_edges(index):
        w = 0.5 * length * (f[a] + f[b])
        if s is not None:
            w += step_cost * np.abs(s[a] - s[b])
        starts.append(a.astype(np.int32))
        ends.append(b.astype(np.int32))
        weights.append(w)
    return csr_array(
        coo_array(
            (np.concatenate(weights), (np.concatenate(starts), np.concatenate(ends))),
            shape=(n_node, n_node),
        )
    )


def spread(weight: Array, n: int, rng: np.random.Generator, spacing: Array) -> NDArray[np.int64]:
    """Draw points in proportion to a weight, no two nearer than the spacing at the later one.

    Parameters
    ----------
    weight : (n_row, n_col) float64, 0 where no point may lie
    n : int, points wanted
    rng : numpy.random.Generator
    spacing : (n_row, n_col) float64, pixels; shrunk as far as `n` points need

    Returns
    -------
    (n, 2) int64, rows and columns
    """
    row, col = np.nonzero(weight > 0)
    # Sorting by log weight + Gumbel noise draws without replacement in proportion to the weight.
    key = np.log(weight[row, col]) + rng.gumbel(size=row.size)
    n_try = min(row.size, 60 * n)
    order = np.argpartition(-key, n_try - 1)[:n_try]
    order = order[np.argsort(-key[order], kind="stable")]
    row, col = row[order], col[order]
    reach2 = spacing[row, col] ** 2
    while True:
        chosen = np.empty((n, 2), dtype=np.int64)
        n_chosen = 0
        for i in range(row.size):
            near = (chosen[:n_chosen, 0] - row[i]) ** 2 + (chosen[:n_chosen, 1] - col[i]) ** 2
            if near.size and near.min() < reach2[i]:
                continue
            chosen[n_chosen] = row[i], col[i]
            n_chosen += 1
            if n_chosen == n:
                return chosen
        reach2 = reach2 * 0.8
        if reach2.max() < 0.5:
            msg = f"only {row.size} pixels can hold a point, {n} were asked for"
            raise ValueError(msg)


def _roads(
    friction: Array, terrain: Terrain, town: NDArray[np.int64], detail: int
) -> NDArray[np.bool_]:
    """Join towns by the cheapest paths between those whose lands meet.

    One shortest-path search from all towns at once gives each pixel its nearest town; the cheapest
    crossing between two towns' lands lies on the cheapest path between them. Roads are the
    minimum spanning tree of these paths and those not much longer than a town's own shortest.
    """
    shape = terrain.land.shape
    land = ndimage.binary_closing(terrain.land, iterations=2, border_value=0) | terrain.land
    coarse = land[::detail, ::detail].copy()
    at = town // detail
    coarse[at[:, 0], at[:, 1]] = True
    cost = friction[::detail, ::detail] * detail
    by_boat = cost[np.isfinite(cost)].max()
    graph = cost_graph(np.where(np.isfinite(cost), cost, by_boat), coarse)
    node = np.full(coarse.shape, -1, dtype=np.int64)
    node[coarse] = np.arange(int(coarse.sum()))
    source = node[at[:, 0], at[:, 1]]
    distance, before, nearest = dijkstra(
        graph, directed=False, indices=source, return_predecessors=True, min_only=True
    )
    owner = np.full(distance.size, -1, dtype=np.int64)
    owner[source] = np.arange(town.shape[0])
    reached = nearest >= 0
    owner[reached] = owner[nearest[reached]]
    edge = coo_array(graph)
    a, b = edge.coords
    meet = (owner[a] != owner[b]) & (owner[a] >= 0) & (owner[b] >= 0)
    a, b, w = a[meet], b[meet], edge.data[meet]
    total = distance[a] + w + distance[b]
    pair = np.minimum(owner[a], owner[b]) * town.shape[0] + np.maximum(owner[a], owner[b])
    order = np.lexsort((total, pair))
    _, first = np.unique(pair[order], return_index=True)
    best = order[first]
    one, two = np.divmod(pair[best], town.shape[0])
    n_town = town.shape[0]
    web = csr_array(coo_array((total[best], (one, two)), shape=(n_town, n_town)))
    tree = minimum_spanning_tree(web)
    tree_pairs = set(zip(*(v.tolist() for v in coo_array(tree).coords), strict=True))
    shortest = np.full(n_town, np.inf)
    np.minimum.at(shortest, one, total[best])
    np.minimum.at(shortest, two, total[best])
    row, col = np.nonzero(coarse)
    lines = []
    for k, i, j in zip(best, one, two, strict=True):
        if (i, j) not in tree_pairs and total[k] > 1.35 * min(shortest[i], shortest[j]):
            continue
        for end, home in ((a[k], i), (b[k], j)):
            path = [int(end)]
            while before[path[-1]] >= 0:
                path.append(int(before[path[-1]]))
            points = np.column_stack([col[path], row[path]]) * detail + detail / 2
            points[-1] = town[home, 1] + 0.5, town[home, 0] + 0.5
            if len(points) > 1:
                lines.append({"type": "LineString", "coordinates": points.tolist()})
        both = [a[k], b[k]]
        crossing = np.column_stack([col[both], row[both]]) * detail + detail / 2
        lines.append({"type": "LineString", "coordinates": crossing.tolist()})
    if not lines:
        return np.zeros(shape, dtype=np.bool_)
    drawn = rasterize(lines, out_shape=shape, fill=0, default_value=1, dtype="uint8")
    return (drawn > 0) & terrain.land


def simulate_population(
    terrain: Terrain,
    rain_mm: Array,
    seed: int,
    *,
    n_town: int,
    total_people: float,
    inside: NDArray[np.bool_],
    detail: int = 1,
) -> PopulationMap:
    """Let people settle where land is flat, watered, low and near towns and roads.

    Parameters
    ----------
    terrain : Terrain
    rain_mm : (n_row, n_col) float64, rainfall in a year
    seed : int
    n_town : int
    total_people : float
        People inside the country.
    inside : (n_row, n_col) bool
        The country; the land around it is settled alike.
    detail : int
        Roads are sought on pixels this many times larger.
    """
    land, km = terrain.land, terrain.pixel_km
    rng = named_rng(seed, "settlement")
    wet = np.clip((rain_mm - 250) / 900, 0.02, 1.2)
    suitable = wet * np.exp(-terrain.slope / (3.0 if km > 2 else 6.0))
    suitable *= 0.35 + np.exp(-terrain.water_km / (3 * km)) + 0.5 * np.exp(-terrain.coast_km / 15)
    suitable *= np.exp(-(((terrain.elevation - 900) / 1500) ** 2))
    suitable *= np.exp(0.7 * fractal_noise(land.shape, rng, hurst=0.4, longest=160 / km))
    suitable = np.where(land, suitable, 0.0)
    # Towns stand on the best land, at river crossings and ports.
    site = suitable**1.5 * (1 + 2 * np.exp(-terrain.coast_km / (2 * km)))
    site[:3] = site[-3:] = 0
    site[:, :3] = site[:, -3:] = 0
    side_km = np.sqrt(land.sum()) * km
    spacing = np.full(land.shape, 0.45 * side_km / np.sqrt(n_town) / km)
    town = spread(site, n_town, rng, spacing)
    # Zipf's law; the largest town belongs to the country.
    is_home = inside[town[:, 0], town[:, 1]]
    town = np.concatenate([town[is_home], town[~is_home]])
    rank = np.arange(1, n_town + 1)
    size = rank**-0.95
    size = size[np.concatenate([[0], 1 + rng.permutation(n_town - 1)])]
    friction = np.where(land, 12 * km * (1 + terrain.slope / (2.5 if km > 2 else 6.0)), np.inf)
    friction[land & terrain.river] *= 1.3
    road = _roads(friction, terrain, town, detail)
    friction[road] = 1.1 * km
    graph = cost_graph(np.where(land, friction, 0.0), land)
    node = np.full(land.shape, -1, dtype=np.int64)
    node[land] = np.arange(int(land.sum()))
    travel = np.full(land.shape, np.inf)
    travel[land] = dijkstra(
        graph, directed=False, indices=node[town[:, 0], town[:, 1]], min_only=True
    )
    # Islands without a town: by boat.
    marooned = land & ~np.isfinite(travel)
    travel[marooned] = 600.0
    with np.errstate(over="ignore"):
        near = np.exp(-travel / 90) + 0.25 * np.exp(-travel / 360) + 0.02
    lumps = np.exp(0.9 * fractal_noise(land.shape, rng, hurst=-0.2, longest=25 / km))
    rural = suitable * near * lumps
    rural[road] *= 1.6
    urban = np.zeros(land.shape)
    texture = np.exp(0.5 * fractal_noise(land.shape, rng, hurst=0.0, longest=12 / km))
    for (row, col), share in zip(town, size, strict=True):
        radius = max(0.6, 9.0 * share**0.4 / km)
        reach = int(np.ceil(6 * radius)) + 1
        rows = slice(max(0, row - reach), row + reach + 1)
        cols = slice(max(0, col - reach), col + reach + 1)
        n_row, n_col = land.shape
        r, c = np.ogrid[rows.start : min(rows.stop, n_row), cols.start : min(cols.stop, n_col)]
        kernel = np.exp(-np.hypot(r - row, c - col) / radius) * texture[rows, cols]
        kernel *= land[rows, cols]
        urban[rows, cols] += share * kernel / kernel.sum()
    home = inside & land
    people = 0.70 * rural / rural[home].sum() + 0.30 * urban / max(urban[home].sum(), 1e-12)
    people = np.where(land, people * total_people, 0.0)
    return PopulationMap(town, size * total_people * 0.3 / size.sum(), road, travel, people)
