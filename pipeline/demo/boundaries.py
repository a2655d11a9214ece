"""Administrative areas of the simulated country, and the boundaries between them."""

from __future__ import annotations

import itertools

import numpy as np
import shapely
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, dijkstra

from pipeline.demo.population import cost_graph, spread
from pipeline.demo.terrain import Array, Mask, Terrain, fractal_noise, named_rng

Labels = NDArray[np.int64]


def cut_country(land: Mask, seed: int, n_pix: int) -> Mask:
    """Choose the pixels of the country: a stretch of coast and the land behind it.

    Some of its land borders are straight, as drawn by a treaty, the others wander.

    Parameters
    ----------
    land : (n_row, n_col) bool
    seed : int
    n_pix : int
        Pixels wanted; met but for the islets and exclaves that are dropped after.

    Returns
    -------
    (n_row, n_col) bool
    """
    rng = named_rng(seed, "country")
    n_row, n_col = land.shape
    row, col = np.meshgrid(np.linspace(0, 1, n_row), np.linspace(0, 1, n_col), indexing="ij")
    sides = []
    turn = rng.uniform(0, 2 * np.pi)
    for k in range(7):
        angle = turn + 2 * np.pi * (k + rng.uniform(-0.25, 0.25)) / 7
        side = np.cos(angle) * (col - 0.54) + np.sin(angle) * (row - 0.50)
        side *= rng.uniform(0.9, 1.15)
        if k % 3:
            side = side + 0.035 * fractal_noise(land.shape, rng, hurst=0.85, longest=n_row / 3)
        sides.append(side)
    far = np.max(sides, axis=0)
    # Neighbours all round: no border on the edge of the map.
    far[:4] = far[-4:] = np.inf
    far[:, :4] = far[:, -4:] = np.inf
    inside = land & (far <= np.partition(far[land], n_pix - 1)[n_pix - 1])
    inside = ndimage.binary_fill_holes(inside)
    label, n = ndimage.label(inside)
    whole, _ = ndimage.label(land)
    size = np.bincount(label.ravel(), minlength=n + 1)
    size[0] = 0
    keep = np.zeros(n + 1, dtype=np.bool_)
    keep[size.argmax()] = True
    for part in np.flatnonzero(size >= 20):
        # An island is kept when all of it is inside; a piece of the mainland would be an exclave.
        r, c = np.argwhere(label == part)[0]
        keep[part] |= (whole == whole[r, c]).sum() == size[part]
    return keep[label]


def divide(terrain: Terrain, people: Array, inside: Mask, n_area: int, seed: int) -> Labels:
    """Give each pixel of the country to the area whose seat is nearest to travel from.

    Seats crowd where people do, so that areas are small in towns and large in empty land; rivers,
    steep ground and rough country make travel slow, so borders tend to lie along them.

    Parameters
    ----------
    terrain : Terrain
    people : (n_row, n_col) float64
    inside : (n_row, n_col) bool
    n_area : int
    seed : int

    Returns
    -------
    (n_row, n_col) int64, the area from 0, -1 outside the country
    """
    rng = named_rng(seed, "areas")
    mean_size = inside.sum() / n_area
    crowd = ndimage.gaussian_filter(people, max(1.0, 0.15 * np.sqrt(mean_size)))
    weight = np.where(inside, np.maximum(crowd, crowd[inside].mean() * 0.02) ** 0.62, 0.0)
    share = weight / weight.sum() * n_area  # seats expected in a pixel
    spacing = np.maximum(0.62 / np.sqrt(np.where(inside, share, 1.0)), 4.3)
    # A seat's own ground (below) must lie in the country.
    weight[~ndimage.binary_erosion(inside, np.ones((3, 3)))] = 0.0
    seat = spread(weight, n_area, rng, spacing)
    rough = np.exp(0.75 * fractal_noise(inside.shape, rng, hurst=0.2, longest=40))
    friction = rough * (1 + terrain.slope / 8) * np.where(terrain.land, 1.0, 3.0)
    # Crossing a river costs; going along it does not.
    bank = terrain.river.astype(np.float64) * np.log1p(terrain.flow) / 8
    reachable = inside | ~terrain.land  # across water to the islands
    graph = cost_graph(friction, reachable, bank, 3.0)
    node = np.full(inside.shape, -1, dtype=np.int64)
    node[reachable] = np.arange(int(reachable.sum()))
    source = node[seat[:, 0], seat[:, 1]]
    _, _, nearest = dijkstra(
        graph, directed=False, indices=source, min_only=True, return_predecessors=True
    )
    owner = np.full(nearest.size, -1, dtype=np.int64)
    owner[source] = np.arange(n_area)
    label = np.full(inside.shape, -1, dtype=np.int64)
    label[reachable] = np.where(nearest >= 0, owner[np.maximum(nearest, 0)], -1)
    # An island behind another country's coast goes to the nearest area.
    _, (r, c) = ndimage.distance_transform_edt(
        label < 0, return_indices=True, return_distances=True
    )
    label = label[r, c]
    # The ground around a seat is its own, so that no area is too thin to draw.
    for d_row, d_col in itertools.product((-1, 0, 1), repeat=2):
        r = np.clip(seat[:, 0] + d_row, 0, inside.shape[0] - 1)
        c = np.clip(seat[:, 1] + d_col, 0, inside.shape[1] - 1)
        label[r, c] = np.arange(n_area)
    label[~inside] = -1
    return _without_crumbs(label, inside, seat)


def _parts(label: Labels) -> Labels:
    """Give each piece (pixels joined by edges, of one area) a number from 0; -1 outside."""
    index = np.arange(label.size).reshape(label.shape)
    part = index.copy()
    part[label < 0] = -1
    right = (label[:, 1:] == label[:, :-1]) & (label[:, 1:] >= 0)
    down = (label[1:] == label[:-1]) & (label[1:] >= 0)
    a = np.concatenate([index[:, 1:][right], index[1:][down]])
    b = np.concatenate([index[:, :-1][right], index[:-1][down]])
    graph = coo_array((np.ones(a.size, dtype=np.int8), (a, b)), shape=(label.size, label.size))
    _, piece = connected_components(graph.tocsr(), directed=False)
    piece = piece.reshape(label.shape)
    out = np.full(label.shape, -1, dtype=np.int64)
    _, out[label >= 0] = np.unique(piece[label >= 0], return_inverse=True)
    return out


def _without_crumbs(label: Labels, inside: Mask, seat: NDArray[np.int64]) -> Labels:
    """Give pieces cut off from their area's seat to a neighbour, whole islands excepted."""
    island, n_island = ndimage.label(inside)
    mainland = np.bincount(island.ravel())[1:].argmax() + 1 if n_island else 0
    for _ in range(4):
        part = _parts(label)
        n_part = int(part.max()) + 1
        at_seat = np.zeros(n_part, dtype=np.bool_)
        at_seat[part[seat[:, 0], seat[:, 1]]] = True
        size = np.bincount(part[part >= 0], minlength=n_part)
        crumb = inside & ~at_seat[part] & ((island == mainland) | (size[part] < 12))
        # An island that is one piece has no neighbour to go to.
        alone = np.bincount(island[inside], weights=~crumb[inside], minlength=n_island + 1) == 0
        crumb &= ~alone[island]
        if not crumb.any():
            break
        _, (r, c) = ndimage.distance_transform_edt(
            crumb | ~inside, return_indices=True, return_distances=True
        )
        label = np.where(crumb, label[r, c], label)
    return label


def _smooth(line: Array, sigma: float, step: float) -> Array:
    """Round a staircase of unit steps, its ends (if it has any) held; one vertex per `step`."""
    n = len(line)
    closed = bool((line[0] == line[-1]).all())
    if closed:
        soft = ndimage.gaussian_filter1d(line[:-1], sigma, axis=0, mode="wrap")
        soft = np.concatenate([soft, soft[:1]])
    else:
        # Continued through each end by point reflection, the line passes through its ends.
        before, after = 2 * line[0] - line[:0:-1], 2 * line[-1] - line[-2::-1]
        soft = ndimage.gaussian_filter1d(np.concatenate([before, line, after]), sigma, axis=0)
        soft = soft[n - 1 : 2 * n - 1]
        soft[0], soft[-1] = line[0], line[-1]
    far = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(soft, axis=0).T))])
    n_new = max(4 if closed else 2, round(float(far[-1]) / step) + 1)
    at = np.linspace(0, far[-1], n_new)
    new = np.column_stack([np.interp(at, far, soft[:, 0]), np.interp(at, far, soft[:, 1])])
    new[0], new[-1] = soft[0], soft[-1]
    return new


def _stairs(label: Labels) -> list[Array]:
    """Trace the pixel edges between areas as lines from junction to junction, (n, 2) x and y."""
    padded = np.pad(label, 1, constant_values=-1)
    row, col = np.nonzero(padded[:, 1:] != padded[:, :-1])  # an edge down, right of col
    down = np.stack([np.c_[col, row - 1], np.c_[col, row]], axis=1)
    row, col = np.nonzero(padded[1:] != padded[:-1])
    right = np.stack([np.c_[col - 1, row], np.c_[col, row]], axis=1)
    steps = shapely.linestrings(np.concatenate([down, right]).astype(np.float64))
    merged = shapely.line_merge(shapely.multilinestrings(steps))
    return [shapely.get_coordinates(line) for line in shapely.get_parts(merged)]


def _warp(seed: int, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Draw a displacement (x, y), pixels, on pixel corners, that folds nowhere.

    Its steps between neighbouring corners stay below one half, so the map is one to one: whatever
    it moves, lines that did not cross do not cross after.
    """
    rng = named_rng(seed, "wiggle")
    size = (shape[0] + 3, shape[1] + 3)
    fields = []
    for _ in range(2):
        field = 0.8 * fractal_noise(size, rng, hurst=0.9, longest=14)
        field += 0.07 * fractal_noise(size, rng, hurst=0.0, longest=4)
        steepest = max(np.abs(np.diff(field, axis=0)).max(), np.abs(np.diff(field, axis=1)).max())
        fields.append(field * min(1.0, 0.24 / steepest * 2))
    return fields[0], fields[1]


def trace(label: Labels, seed: int) -> list[shapely.MultiPolygon]:
    """Turn areas of pixels into polygons whose borders wander freely between the pixels.

    Each border between two areas is one line, smoothed and wiggled once and used by both sides, so
    neighbours share it exactly.

    Parameters
    ----------
    label : (n_row, n_col) int64
        Areas from 0, each with at least a pixel; -1 outside.
    seed : int

    Returns
    -------
    list of MultiPolygon, one an area, in pixels: x to the right, y down, corner at (0, 0)
    """
    stairs = _stairs(label)
    smooth = [_smooth(line, 1.6, 0.9) for line in stairs]
    shift = _warp(seed, label.shape)

    def displace(xy: Array) -> Array:
        at = (xy[:, 1] + 1, xy[:, 0] + 1)
        moves = [ndimage.map_coordinates(s, at, order=1, mode="nearest") for s in shift]
        return xy + np.column_stack(moves)

    part = _parts(label)
    row, col = _hearts(part)
    heart = np.column_stack([col + 0.5, row + 0.5])
    rough = np.zeros(len(stairs), dtype=np.bool_)
    while True:
        lines = _uncrossed(stairs, smooth, rough)
        # Straight pieces longer than the warp's lattice would cut its corners.
        moved = shapely.transform(shapely.segmentize(lines, 0.6), displace)
        faces = shapely.get_parts(shapely.polygonize(list(moved)))
        hit, face = shapely.STRtree(faces).query(shapely.points(displace(heart)), "within")
        rivals = np.bincount(face, minlength=len(faces))
        lost = np.ones(len(heart), dtype=np.bool_)
        lost[hit[rivals[face] == 1]] = False
        if not lost.any() and len(faces) == len(heart):
            break
        # Smoothing drew a border past the middle of a small part: leave borders there as they are.
        near = shapely.STRtree(lines).query(shapely.points(heart[lost]), "dwithin", distance=4.0)
        if rough[near[1]].all():
            msg = f"seed {seed} gives areas that cannot be drawn; use another seed"
            raise ArithmeticError(msg)
        rough[near[1]] = True
    area = label[row, col][hit]
    pieces = [list(faces[face[area == a]]) for a in range(int(label.max()) + 1)]
    return [shapely.MultiPolygon(piece) for piece in pieces]


def _uncrossed(stairs: list[Array], smooth: list[Array], rough: Mask) -> NDArray[np.object_]:
    """Take the smooth form of each line but where it crosses another; `rough` grows in place."""
    while True:
        taken = [s if r else m for s, m, r in zip(stairs, smooth, rough, strict=True)]
        number = np.repeat(np.arange(len(taken)), [len(t) for t in taken])
        lines = np.asarray(shapely.linestrings(np.concatenate(taken), indices=number))
        bad = ~shapely.is_simple(lines)
        tree = shapely.STRtree(lines)
        for predicate in ("crosses", "overlaps"):
            bad[np.unique(tree.query(lines, predicate))] = True
        if not (bad & ~rough).any():
            return lines
        rough |= bad  # unsmoothed lines cross none but smoothed ones: this ends


def _hearts(part: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the pixel of each part that is farthest from its border: rows and columns."""
    deep = ndimage.distance_transform_edt(_interior(part)).ravel()
    flat = part.ravel()
    order = np.lexsort((np.arange(flat.size), -deep, flat))
    order = order[int((flat < 0).sum()) :]
    _, first = np.unique(flat[order], return_index=True)
    row, col = np.divmod(order[first], part.shape[1])
    return row, col


def _interior(part: Labels) -> Mask:
    """Mark the pixels whose four neighbours are of the same part."""
    same = np.ones(part.shape, dtype=np.bool_)
    same[:, 1:] &= part[:, 1:] == part[:, :-1]
    same[:, :-1] &= part[:, 1:] == part[:, :-1]
    same[1:] &= part[1:] == part[:-1]
    same[:-1] &= part[1:] == part[:-1]
    return same & (part >= 0)


def name_areas(n: int, seed: int) -> list[str]:
    """Make up distinct place names."""
    rng = named_rng(seed, "names")
    first = ["Ka", "Mba", "Lu", "Ndo", "Chi", "Ma", "Ru", "Ta", "Ke", "Nya", "So", "Ki", "Bu", "Ze"]
    middle = ["la", "nga", "mbo", "re", "si", "tu", "ko", "ri", "ndi", "wa", "me", "zi", "ha", "pe"]
    last = ["ra", "ni", "ma", "le", "to", "ka", "ga", "si", "bwe", "do", "we", "li"]
    names = ["".join(p) for p in itertools.product(first, middle, last)]
    names += [f"{a} {b}" for a, b in itertools.product(("New", "Upper", "Lower"), names)]
    return [names[i] for i in rng.permutation(len(names))[:n]]
