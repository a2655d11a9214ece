"""Simulated grids whose true rate is known: surfaces, areas and counts of the fixed designs.

A grid has pixels of 1 km. The log of its rate is a function of covariates plus a Matern field,
drawn exactly from its covariance matrix; nothing here calls the kernels of ``models``. Covariates,
people and the noise of the field depend on the seed alone, areas on the seed and their number:
designs of one seed differ in what their names say and in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree
from scipy.special import gamma, kv

from models.core.block import Bags

SMOOTHED = (2.0, 3.0, 5.0, 8.0, 12.0)  # km, of the covariates; one more is white noise
SLOPES = (0.4, -0.3, 0.2)  # by the deviation of a covariate, each times 0.8 to 1.2
FIELD_SD = 0.4
LENGTHS = (5.0, 9.0)  # km
AREA_SD = 0.2
STRONG, WEAK = 300.0, 30.0  # cases an area
PEOPLE = 500.0  # a pixel, median
MARGIN = 48  # pixels around the grid, so that smoothed noise does not know of its edge
JITTER = 1e-9
SMOOTHNESS = {"linear": 1.5, "rough": 1.0, "rougher": 0.5, "smoother": 2.5, "bent": 1.5}


@dataclass(frozen=True)
class Design:
    """What the grids of a design have in common.

    Attributes
    ----------
    truth : {"linear", "rough", "rougher", "smoother", "bent"}
        ``linear``: three slopes plus a Matern-3/2 field. ``rough``: a field of smoothness 1
        instead, ``rougher`` and ``smoother`` of 1/2 and 5/2. ``bent``: a hyperbolic tangent, a
        square and an interaction instead of the slopes.
    n_area : int
    cases : float
        Expected cases of an area, on average.
    area_sd : float
        Deviation of the logarithm of a factor, of mean one, of the counts of each area.
    law : {"log_normal", "gamma"}
        Of that factor; a gamma factor, of the same variance, makes negative binomial counts.
    n_side : int
        Pixels of a side.
    """

    truth: str
    n_area: int
    cases: float = STRONG
    area_sd: float = 0.0
    n_side: int = 60
    law: str = "log_normal"

    def __post_init__(self) -> None:
        if self.truth not in SMOOTHNESS:
            raise ValueError(f"truth: {self.truth!r}; use one of {', '.join(SMOOTHNESS)}")
        if self.law not in ("log_normal", "gamma"):
            raise ValueError(f"law: {self.law!r}; use log_normal or gamma")
        if not 0 < self.n_area <= self.n_side**2:
            raise ValueError(f"n_area: {self.n_area} of {self.n_side**2} pixels; give fewer areas")


@dataclass(frozen=True)
class Grid:
    """A simulated grid; its pixels are in the order of their areas.

    Attributes
    ----------
    pixel : (n_pix,) int64
        Number of each pixel on the grid, row by row.
    x : (n_pix, 6) float64
        Covariates, of mean 0 and deviation 1; the last is white noise without an effect.
    coords : (n_pix, 2) float64
        Centres of the pixels, km.
    people : (n_pix,) float64
    offsets : (n_area + 1,) int64
        Pixels of area ``a`` are ``offsets[a]:offsets[a + 1]``.
    rate : (n_pix,) float64
        True cases per person, without the areas' factors.
    expected : (n_area,) float64
        Sum of people times rate.
    cases : (n_area,) float64
        Drawn counts.
    slopes : (6,) float64
        True slopes; NaN where the truth has none.
    length : float
        Length-scale of the field, km.
    """

    pixel: np.ndarray
    x: np.ndarray
    coords: np.ndarray
    people: np.ndarray
    offsets: np.ndarray
    rate: np.ndarray
    expected: np.ndarray
    cases: np.ndarray
    slopes: np.ndarray
    length: float

    def bags(self) -> Bags:
        """Return what a model is fitted to."""
        return Bags(self.x, self.offsets, self.cases, weight=self.people, coords=self.coords)


def simulate(design: Design, seed: int) -> Grid:
    """Draw a grid of a design."""
    n = design.n_side
    surface = np.random.default_rng([1, seed])
    x = covariates(n, surface)
    people = population(n, surface)
    columns = surface.permutation(len(SMOOTHED))
    factor = surface.uniform(0.8, 1.2, len(SLOPES))
    length = float(surface.uniform(*LENGTHS))
    noise = surface.standard_normal(n * n)
    coords = centres(n)
    field = FIELD_SD * matern_root(n, length, SMOOTHNESS[design.truth]) @ noise
    effect, slopes = covariate_effect(design.truth, x, columns, factor)
    f = effect + field

    area = voronoi(coords, design.n_area, np.random.default_rng([2, seed, design.n_area]))
    order = np.argsort(area, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(area, minlength=design.n_area))])
    weight = people * np.exp(f)
    rate = np.exp(f) * design.cases * design.n_area / weight.sum()
    expected = np.bincount(area, people * rate, design.n_area)
    counting = np.random.default_rng([3, seed, design.n_area])
    cases = counting.poisson(expected * area_factors(design, counting)).astype(np.float64)
    return Grid(
        order, x[order], coords[order], people[order], offsets.astype(np.int64), rate[order],
        expected, cases, slopes, length,
    )  # fmt: skip


def area_factors(design: Design, rng: np.random.Generator) -> np.ndarray:
    """Draw the factor of each area's expected count, of mean one: (n_area,)."""
    if design.law == "gamma" and design.area_sd > 0:
        size = 1.0 / np.expm1(design.area_sd**2)  # of the negative binomial counts
        return rng.gamma(size, 1.0 / size, design.n_area)
    z = rng.standard_normal(design.n_area)
    return np.asarray(np.exp(design.area_sd * z - design.area_sd**2 / 2))


def centres(n_side: int) -> np.ndarray:
    """Return the centres of the pixels, km: (n_pix, 2), row by row."""
    row, col = np.divmod(np.arange(n_side * n_side), n_side)
    return np.column_stack([col, row]) + 0.5


def matern(r: np.ndarray, length: float, smoothness: float) -> np.ndarray:
    r"""Matern correlation at distances ``r``, km.

    ``2^(1 - nu) / Gamma(nu) h^nu K_nu(h)`` with ``h = sqrt(2 nu) r / length`` (Rasmussen and
    Williams 2006, eq. 4.14); ``nu = 3/2`` gives ``(1 + h) exp(-h)``.
    """
    h = np.sqrt(2.0 * smoothness) * np.asarray(r, dtype=np.float64) / length
    h = np.maximum(h, 1e-12)  # the limit at 0 is 1
    return 2.0 ** (1.0 - smoothness) / gamma(smoothness) * h**smoothness * kv(smoothness, h)


def matern_root(n_side: int, length: float, smoothness: float) -> np.ndarray:
    """Return the lower Cholesky factor of the field's correlations: (n_pix, n_pix)."""
    step = np.arange(n_side)
    table = matern(np.hypot(step[:, None], step), length, smoothness)
    row, col = np.divmod(np.arange(n_side * n_side), n_side)
    k = table[np.abs(row[:, None] - row), np.abs(col[:, None] - col)]
    k[np.diag_indices_from(k)] += JITTER
    return cholesky(k, lower=True, overwrite_a=True, check_finite=False)


def covariates(n_side: int, rng: np.random.Generator) -> np.ndarray:
    """Draw five smooth covariates, each sharing a part with the one before, and a noise."""
    columns = []
    for sd in SMOOTHED:
        own = _smooth(n_side, sd, rng)
        columns.append(own + 0.5 * columns[-1] if columns else own)
    x = np.column_stack([*columns, rng.standard_normal(n_side * n_side)])
    return (x - x.mean(axis=0)) / x.std(axis=0)


def population(n_side: int, rng: np.random.Generator) -> np.ndarray:
    """Draw log-normal people of each pixel, clustered over some kilometres."""
    towns = _smooth(n_side, 2.5, rng)
    return PEOPLE * np.exp(towns + 0.5 * rng.standard_normal(n_side * n_side))


def covariate_effect(
    truth: str, x: np.ndarray, columns: np.ndarray, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what covariates do to the log rate, (n_pix,), and their slopes, (6,).

    Parameters
    ----------
    truth : str
    x : (n_pix, 6) array
    columns : (5,) int array
        Order in which the smooth covariates take the roles.
    factor : (3,) array
        Of the strength of each part.
    """
    slopes = np.zeros(x.shape[1])
    if truth == "bent":
        a, b, c, d = x[:, columns[:4]].T
        parts = (0.5 * np.tanh(2.0 * a), 0.2 * (b * b - 1.0), 0.3 * c * d)
        return factor @ np.array(parts), np.full(x.shape[1], np.nan)
    slopes[columns[: len(SLOPES)]] = factor * SLOPES
    return x @ slopes, slopes


def voronoi(coords: np.ndarray, n_area: int, rng: np.random.Generator) -> np.ndarray:
    """Return the area of each pixel: the nearest of as many pixels drawn at random."""
    seeds = coords[rng.choice(coords.shape[0], n_area, replace=False)]
    # A hair's breadth aside: ties would be broken by the order of the tree.
    seeds = seeds + rng.uniform(-1e-3, 1e-3, seeds.shape)
    area: np.ndarray = cKDTree(seeds).query(coords)[1]
    return area


def _smooth(n_side: int, sd: float, rng: np.random.Generator) -> np.ndarray:
    """Draw smoothed white noise of deviation one over the grid: (n_pix,)."""
    wide = rng.standard_normal((n_side + 2 * MARGIN, n_side + 2 * MARGIN))
    inner = gaussian_filter(wide, sd)[MARGIN:-MARGIN, MARGIN:-MARGIN].ravel()
    return (inner - inner.mean()) / inner.std()
