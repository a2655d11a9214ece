"""A map against the truth it was simulated from: pixels, and what is inside the areas.

The store is read block by block and the true rate in the window of each area, so memory grows
with the largest area, not with the map. A pixel on a border counts once in each area it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from geo.grids.grid import Grid, Tile
from geo.sources.align import aligned
from geo.sources.source import Source
from pipeline.core.threads import map_in_order
from pipeline.evaluation.label_scores import (
    decision_scores,
    label_scores,
    weighted_label_scores,
)
from pipeline.evaluation.scores import PairMoments, pit_coverage

Found = TypeVar("Found")


def compare_with_truth(
    model: Any,
    store: Any,
    source: Source,
    levels: Sequence[float],
    advance: Callable[[int], None] | None = None,
    one_rate: float = float("nan"),
) -> dict[str, Any]:
    """Score predicted rates of pixels against true ones.

    Coverage asks where the truth lies in the pixel's predictive distribution,
    ``u = P(rate <= truth)``: a central interval of level l covers it where ``|u - 1/2| <= l/2``.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    store : BagStore
        The pixels in areas.
    source : Source
        True rate per person; aligned with the store's grid as covariates are.
    levels : sequence of float
        Central levels of the intervals.
    advance : callable, optional
        Called with the number of areas done after each block.
    one_rate : float, optional
        The rate of a map that gives the whole country one.

    Returns
    -------
    dict
        ``pixels`` and ``people``: every pixel counting alike, and by the people in it; each with
        ``log_rate`` and ``rate`` (``correlation``, ``rmse``, ``mae``, ``bias``: predicted less
        true), ``within_areas`` (correlation of log rates less their area's mean: what the map
        knows beyond the areas' own counts), and ``coverage`` by level. ``observed_rate``: the
        same scores of the map that gives each area's observed rate to all of its pixels;
        ``one_rate``: of the map of one rate. ``n_pix``, ``n_left_out`` (truth missing or not
        positive).
    """
    sums = {way: _Sums(levels) for way in ("pixels", "people")}
    n_left_out = 0

    def compute(block: Any, truth: np.ndarray) -> tuple[int, list[_Pixels]]:
        known = np.isfinite(truth) & (truth > 0)
        prediction = model.predict_pixels(block.x, block.coords)
        level = 1 - np.asarray(prediction.exceed(np.where(known, truth, 1.0)))
        mean = np.asarray(prediction.mean, dtype=np.float64)
        bags = []
        for bag in range(block.n_bag):
            part = slice(int(block.offsets[bag]), int(block.offsets[bag + 1]))
            use = known[part]
            weight = block.weight[part]
            # A prevalence is of those tested; every other rate is of the people.
            exposure = float(weight.sum() if block.trials is None else block.trials[bag])
            observed = block.y[bag] / exposure if exposure > 0 else np.nan
            # The logarithm of no case is that of half a case.
            of_log = observed if block.y[bag] else 0.5 / exposure if exposure > 0 else np.nan
            bags.append(
                _Pixels(
                    truth[part][use], mean[part][use], level[part][use], weight[use],
                    ((observed, of_log), (one_rate, one_rate)),
                )
            )  # fmt: skip
        return int(known.size - known.sum()), bags

    for left_out, bags in _by_block(store, source, compute, advance):
        n_left_out += left_out
        for pixels in bags:
            sums["pixels"].add(pixels, np.ones(pixels.truth.shape[0]))
            sums["people"].add(pixels, pixels.weight)
    report: dict[str, Any] = {way: sums[way].summary() for way in sums}
    report["n_pix"] = sums["pixels"].log_rate.n
    report["n_left_out"] = n_left_out
    return report


def _by_block(
    store: Any,
    source: Source,
    compute: Callable[[Any, np.ndarray], Found],
    advance: Callable[[int], None] | None,
) -> Iterator[Found]:
    """Yield what ``compute`` makes of each block and the truth at its pixels, (n_pix,)."""

    def of(number: int) -> tuple[int, Found]:
        block = store.read_block(number)
        truth = truth_of_block(source, store.grid, store.read_pixel(number), block.offsets)
        return block.n_bag, compute(block, truth)

    for n_bag, found in map_in_order(of, range(store.n_block)):
        yield found
        if advance:
            advance(n_bag)


@dataclass(frozen=True)
class _Pixels:
    """Pixels of one area whose truth is known.

    ``flat`` are rates that ignore where a pixel is, each with the one whose logarithm is taken.
    """

    truth: np.ndarray
    mean: np.ndarray
    level: np.ndarray
    weight: np.ndarray
    flat: tuple[tuple[float, float], ...]


@dataclass
class _Sums:
    """Everything that is added up over pixels, for one way of weighting them."""

    levels: Sequence[float]
    rate: PairMoments = field(default_factory=PairMoments)
    log_rate: PairMoments = field(default_factory=PairMoments)
    within: PairMoments = field(default_factory=PairMoments)
    weight: float = 0.0

    def __post_init__(self) -> None:
        self.covered = np.zeros(len(self.levels))
        self.flat = {name: (PairMoments(), PairMoments()) for name in ("observed_rate", "one_rate")}

    def add(self, pixels: _Pixels, weight: np.ndarray) -> None:
        total = float(weight.sum())
        if total == 0:
            return
        log_truth = np.log(pixels.truth)
        log_mean = np.log(np.maximum(pixels.mean, np.finfo(float).tiny))
        self.rate.add(pixels.truth, pixels.mean, weight)
        self.log_rate.add(log_truth, log_mean, weight)
        self.within.add(
            log_truth - weight @ log_truth / total, log_mean - weight @ log_mean / total, weight
        )
        flat = np.ones(weight.shape[0])
        for rates, (of_rate, of_log) in zip(pixels.flat, self.flat.values(), strict=True):
            value, for_log = rates
            if np.isfinite(value):
                of_rate.add(pixels.truth, value * flat, weight)
            if for_log > 0:
                of_log.add(log_truth, np.log(for_log) * flat, weight)
        for number, level in enumerate(self.levels):
            # The rate is continuous: the slot of the transform is one point.
            inside = pit_coverage(pixels.level - 1e-12, pixels.level + 1e-12, level)
            self.covered[number] += float(weight @ inside)
        self.weight += total

    def summary(self) -> dict[str, Any]:
        share = self.covered / self.weight if self.weight > 0 else np.full(len(self.levels), np.nan)
        # Differences from the mean that are rounding alone have no correlation.
        flat = self.weight == 0 or np.diag(self.within.scatter).min() < 1e-20 * self.weight
        within = float("nan") if flat else self.within.summary()["correlation"]
        return {
            "log_rate": self.log_rate.summary(),
            "rate": self.rate.summary(),
            "within_areas": {"correlation": within},
            "coverage": {
                f"{level:g}": float(covered)
                for level, covered in zip(self.levels, share, strict=True)
            },
            **{
                name: {"log_rate": of_log.summary(), "rate": of_rate.summary()}
                for name, (of_rate, of_log) in self.flat.items()
            },
        }


def truth_of_block(
    source: Source, grid: Grid, pixel: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """Read the truth at pixels, (n_pix,), through the window of each area in turn."""
    truth = np.empty(pixel.shape[0])
    for start, stop in pairwise(offsets):
        row, col = grid.row_col(pixel[start:stop])
        tile = Tile(
            int(row.min()),
            int(col.min()),
            int(row.max() - row.min()) + 1,
            int(col.max() - col.min()) + 1,
        )
        window = aligned(source, grid, tile, "auto")
        truth[start:stop] = window[row - tile.row, col - tile.col]
    return truth


def compare_labels_with_truth(
    model: Any,
    store: Any,
    source: Source,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Score the probabilities of pixels against what the pixels truly are.

    Ranks need all pixels at once: 14 bytes a pixel are held. A pixel on a border counts once in
    each area it touches.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    store : BagStore
        The pixels in areas.
    source : Source
        1 where a pixel is positive, else 0; aligned with the store's grid.
    advance : callable, optional
        Called with the number of areas done after each block.

    Returns
    -------
    dict
        ``pixels``: scores of the map, as of :func:`pipeline.evaluation.label_scores.label_scores`;
        ``people``: each pixel counting by its people, as of
        :func:`pipeline.evaluation.label_scores.weighted_label_scores`;
        ``positive_areas``: the same for the pixels of positive areas alone, where labels say
        nothing of who is who; ``area_label``: ``auc``, ``accuracy`` and ``f1`` of giving each
        pixel its area's label; ``n_pix``, ``n_left_out`` (truth missing).
    """

    def compute(block: Any, truth: np.ndarray) -> tuple[np.ndarray, ...]:
        label = np.repeat(block.y, np.diff(block.offsets)) > 0.5
        predicted = np.asarray(model.predict_pixels(block.x, block.coords).mean)
        known = np.isfinite(truth) & np.isfinite(predicted)
        values = (truth > 0.5, label, predicted, block.weight)
        return np.array([(~known).sum()]), *(each[known] for each in values)

    parts = list(_by_block(store, source, compute, advance))
    left_out, truth, label, predicted, people = map(np.concatenate, zip(*parts, strict=True))
    flat = label_scores(truth, label.astype(np.float64))
    return {
        "pixels": label_scores(truth, predicted),
        "people": weighted_label_scores(truth, predicted, people),
        "positive_areas": label_scores(truth[label], predicted[label]),
        "area_label": {"auc": flat["auc"], **decision_scores(truth, label)},
        "n_pix": int(truth.size),
        "n_left_out": int(left_out.sum()),
    }
