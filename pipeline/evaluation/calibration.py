r"""Calibration of pixels: refits to data simulated from the fitted map.

A function drawn from the map's posterior is taken for the truth, counts of the areas are drawn
from it by the model's own likelihood, and the model is fitted to them as it was to the real ones.
Then the truth is known at every pixel, and the share of pixels whose interval has it is counted.

Averaged over data that the model's prior makes, a draw of the posterior is a draw of the prior,
and an exact posterior covers nominally (Cook, Gelman & Rubin 2006; Talts et al. 2018). So this
tests the computation: approximation, optimiser, hyperparameters. It does not test the family of
the model, whose truths are its own. ``docs/design/pixel-calibration.md`` has the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from pipeline.config.size_defaults import cap_for
from pipeline.core.threads import map_in_order
from pipeline.evaluation.about import WAYS
from pipeline.evaluation.scores import pit_bounds, pit_coverage
from pipeline.products.areas import predict_areas
from pipeline.storage.files import atomic_write

SCORED_PIXELS = 20_000  # scored pixels of all areas together
POOL = 16  # functions drawn for each truth, which is the first: a fair one of all members
DEPENDENCE_PIXELS, DEPENDENCE_DRAWS = 300, 200
_CHUNK = 4096


@dataclass(frozen=True)
class ScoredPixels:
    """Pixels at which a map is compared with a simulated truth.

    Attributes
    ----------
    x : (n, n_feat) array
    coords : (n, n_axis) float64 array or None
        km.
    count : (n,) float64 array
        Pixels that each stands for.
    people : (n,) float64 array
        People that each stands for; km2 without a population.
    """

    x: np.ndarray
    coords: np.ndarray | None
    count: np.ndarray
    people: np.ndarray

    @classmethod
    def of(cls, store: Any, seed: int, total: int = SCORED_PIXELS) -> ScoredPixels:
        """Choose pixels of every area at random, about ``total`` of all areas together.

        Parameters
        ----------
        store : BagStore
            With every pixel: not a thinned one.
        seed : int
        total : int
        """
        cap = cap_for(store.sizes, total) if int(store.sizes.sum()) > total else None
        parts = []
        for number, block in enumerate(store.blocks()):
            rng = np.random.default_rng([seed, 7, number])
            rows: list[np.ndarray] = []
            stands: list[np.ndarray] = []
            for first, last in zip(block.offsets[:-1], block.offsets[1:], strict=True):
                size = int(last - first)
                kept = size if cap is None else min(size, cap)
                rows.append(int(first) + np.sort(rng.permutation(size)[:kept]))
                stands.append(np.full(kept, size / kept))
            at, each = np.concatenate(rows), np.concatenate(stands)
            coords = None if block.coords is None else block.coords[at]
            parts.append((block.x[at], coords, each, each * block.weight[at]))
        x, xy, count, people = zip(*parts, strict=True)
        return cls(
            np.concatenate(x),
            None if xy[0] is None else np.concatenate(xy),
            np.concatenate(count),
            np.concatenate(people).astype(np.float64),
        )

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def at(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return covariates and positions of some of them."""
        return self.x[rows], None if self.coords is None else self.coords[rows]

    def weight(self, way: str) -> np.ndarray:
        """Return the weight of each by ``way``, one of ``WAYS``: (n,)."""
        return self.count if way == "pixels" else self.people


@dataclass(frozen=True)
class Simulated:
    """Data simulated from a map, and the truth behind them.

    Attributes
    ----------
    y : (n_bag,) float64 array
        Responses of the areas.
    expected : (n_bag,) float64 array
        Their expectations, the likelihood's noise and area effect left out.
    rate : (n,) float64 array
        True rate of each scored pixel.
    """

    y: np.ndarray
    expected: np.ndarray
    rate: np.ndarray


def simulate(
    model: Any, store: Any, pixels: ScoredPixels, key: Sequence[int], n_thread: int | None = None
) -> Simulated:
    """Draw a function from a map's posterior, and responses of the areas around it.

    Parameters
    ----------
    model : fitted model
        With ``sample_functions`` and ``predict_bags``.
    store : BagStore
        The areas, as the refit will read them.
    pixels : ScoredPixels
    key : sequence of int
        Seed.
    n_thread : int, optional
        Results do not depend on it.
    """
    functions, first = model.sample_functions(POOL, np.random.default_rng([*key, 1])).alone(0)

    def of_block(number: int) -> tuple[np.ndarray, np.ndarray]:
        found = model.predict_bags(store.read_block(number), draws=functions)
        noise = np.random.default_rng([*key, 2, number])
        return found.observed(noise).draws[first], found.draws[first]

    parts = list(map_in_order(of_block, range(store.n_block), n_thread))
    y, expected = (np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True))
    rate = [functions.rate(*pixels.at(part))[first] for part in _chunks(len(pixels))]
    return Simulated(y, expected, np.concatenate(rate))


@dataclass(frozen=True)
class Found:
    """What one refit says of its simulated truth.

    Attributes
    ----------
    levels : (n_level,) float64 array
        Central probabilities of the intervals.
    pixels, people : (n_level,) float64 arrays
        Share of the true rates of pixels inside, by pixel and by people.
    areas, areas_people : (n_level,) float64 arrays
        Share of the areas' true expectations inside, each area alike and by people.
    effective : (2,) float64 array
        Effective number of independent pixels, by pixel and by people.
    converged : bool
        Whether the refit has.
    """

    levels: np.ndarray
    pixels: np.ndarray
    people: np.ndarray
    areas: np.ndarray
    areas_people: np.ndarray
    effective: np.ndarray
    converged: np.ndarray

    def save(self, path: Path) -> None:
        """Write to an ``.npz`` that appears only when complete."""
        with atomic_write(path) as file:
            np.savez(file, **asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read a file of :meth:`save`; None if it is absent or damaged."""
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
                return cls(**{each.name: arrays[each.name] for each in fields(cls)})
        except FileNotFoundError:
            return None
        except Exception:  # damaged bytes make zipfile and NumPy raise nearly anything
            return None


def compare(
    refit: Any,
    store: Any,
    pixels: ScoredPixels,
    truth: Simulated,
    levels: Sequence[float],
    n_draws: int,
    key: Sequence[int],
) -> Found:
    """Count the true rates inside the intervals of a refit.

    A central interval of level l has the truth where ``|P(rate <= truth) - 1/2| <= l/2``.

    Parameters
    ----------
    refit : fitted model
        Fitted to ``truth.y``.
    store : BagStore
        The areas.
    pixels : ScoredPixels
    truth : Simulated
    levels : sequence of float
    n_draws : int
        Functions drawn for the areas.
    key : sequence of int
        Seed.
    """
    below = np.concatenate(
        [
            1.0 - np.asarray(refit.predict_pixels(*pixels.at(part)).exceed(truth.rate[part]))
            for part in _chunks(len(pixels))
        ]
    )
    inside = np.abs(below - 0.5)[None, :] <= np.asarray(levels)[:, None] / 2
    functions = refit.sample_functions(n_draws, np.random.default_rng([*key, 3]))
    draws = np.concatenate(
        [
            predict_areas(refit, block, functions, observed=True).draws
            for block in store.with_responses(truth.y).blocks()
        ],
        axis=1,
    )
    low, high = pit_bounds(draws, truth.expected)
    areas = np.stack([pit_coverage(low, high, level) for level in levels])
    own = {way: _share(inside, pixels.weight(way)) for way in WAYS}
    by_draw = refit.sample_functions(DEPENDENCE_DRAWS, np.random.default_rng([*key, 4]))
    effective = []
    for number, way in enumerate(WAYS):
        weight = pixels.weight(way)
        rng = np.random.default_rng([*key, 5, number])
        share = weight / weight.sum() if weight.sum() > 0 else None
        chosen = rng.choice(len(pixels), DEPENDENCE_PIXELS, p=share)
        effective.append(effective_number(by_draw.rate(*pixels.at(chosen)), len(pixels)))
    return Found(
        np.asarray(levels, dtype=np.float64),
        own["pixels"],
        own["people"],
        areas.mean(axis=1),
        _share(areas, np.asarray(store.bag_weight, dtype=np.float64)),
        np.array(effective),
        np.array(bool(getattr(refit, "converged_", True))),
    )


def effective_number(draws: np.ndarray, most: float) -> float:
    r"""Return how many independent pixels vary as little in their coverage, at least.

    Whether a pixel is covered is an even function of its error, whose expansion in Hermite
    polynomials begins at order 2 (Mehler's formula). So for jointly normal errors of correlation
    ``rho`` the correlation of two pixels' coverages is at most ``rho^2``, and the variance of the
    covered share at most ``p (1 - p) sum_ij w_i w_j rho_ij^2``, weights adding to one: that of
    ``1 / sum_ij w_i w_j rho_ij^2`` independent pixels. Correlations are of the normal scores of
    the draws' ranks, which the link does not change; the chance part of their squares is taken off.

    Parameters
    ----------
    draws : (n_draws, n) array
        Joint draws of the posterior at pixels chosen in proportion to their weights.
    most : float
        Number of pixels.
    """
    n_draws, n = draws.shape
    flat = np.ptp(draws, axis=0) == 0
    score = ndtri((rankdata(draws, axis=0) - 0.5) / n_draws)
    score -= score.mean(axis=0)
    scale = np.sqrt((score**2).sum(axis=0))
    score /= np.where(flat, 1.0, scale)
    square = (score.T @ score) ** 2
    square[flat] = square[:, flat] = 1.0  # a map without a spread has one error
    chance = 1.0 / (n_draws - 1)
    square = (square - chance) / (1.0 - chance)
    mean = float((square.sum() - np.trace(square)) / (n * (n - 1)))
    return float(1.0 / np.clip(mean, 1.0 / most, 1.0))


Refit = Callable[[np.ndarray, Path], Any]


def finished(path: Path, levels: Sequence[float]) -> Found | None:
    """Return a finished simulation; None if it is absent, damaged or has other levels."""
    found = Found.load(path)
    if found is None or not np.array_equal(found.levels, np.asarray(levels)):
        return None
    return found


def _share(inside: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted share of each row of ``inside`` (n_level, n); NaN without any weight."""
    total = float(weight.sum())
    return inside @ weight / total if total > 0 else np.full(inside.shape[0], np.nan)


def _chunks(n: int) -> list[slice]:
    return [slice(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK)]
