"""A map against the truth it was simulated from: pixels, and what is inside the areas.

The store is read block by block and the true rate in the window of each area, so memory grows
with the largest area, not with the map. A pixel on a border counts once in each area it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from geo.align import aligned
from geo.grid import Grid, Tile
from geo.raster import RasterSource
from pipeline.core.threads import map_in_order
from pipeline.evaluation.label_scores import decision_scores, label_scores
from pipeline.evaluation.scores import PairMoments, pit_coverage


def compare_with_truth(
    model: Any,
    store: Any,
    source: RasterSource,
    levels: Sequence[float],
    n_thread: int | None = None,
    advance: Callable[[int], None] | None = None,
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
    source : RasterSource
        True rate per person; aligned with the store's grid as covariates are.
    levels : sequence of float
        Central levels of the intervals.
    n_thread : int
        Blocks predicted at the same time; one a core where not given.
    advance : callable, optional
        Called with the number of areas done after each block.

    Returns
    -------
    dict
        ``pixels`` and ``people``: every pixel counting alike, and by the people in it; each with
        ``log_rate`` and ``rate`` (``correlation``, ``rmse``, ``mae``, ``bias``: predicted less
        true), ``within_areas`` (correlation of log rates less their area's mean: what the map
        knows beyond the areas' own counts), and ``coverage`` by level. ``observed_rate``: the
        same scores of the map that gives each area's observed rate to all of its pixels.
        ``n_pix``, ``n_left_out`` (truth missing or not positive).
    """
    ways = ("pixels", "people")
    sums = {way: _Sums(levels) for way in ways}
    n_left_out = 0

    def compute(number: int) -> tuple[int, list[_Pixels]]:
        block = store.read_block(number)
        truth = truth_of_block(source, store.grid, store.read_pixel(number), block.offsets)
        known = np.isfinite(truth) & (truth > 0)
        prediction = model.predict_pixels(block.x, block.coords)
        level = 1 - np.asarray(prediction.exceed(np.where(known, truth, 1.0)))
        mean = np.asarray(prediction.mean, dtype=np.float64)
        bags = []
        for bag in range(block.n_bag):
            part = slice(int(block.offsets[bag]), int(block.offsets[bag + 1]))
            use = known[part]
            weight = block.weight[part]
            people = float(weight.sum())
            observed = block.y[bag] / people if people > 0 else np.nan
            bags.append(
                _Pixels(truth[part][use], mean[part][use], level[part][use], weight[use], observed)
            )
        return int(known.size - known.sum()), bags

    for left_out, bags in map_in_order(compute, range(store.n_block), n_thread):
        n_left_out += left_out
        for pixels in bags:
            sums["pixels"].add(pixels, np.ones(pixels.truth.shape[0]))
            sums["people"].add(pixels, pixels.weight)
        if advance:
            advance(len(bags))
    report: dict[str, Any] = {way: sums[way].summary() for way in ways}
    report["n_pix"] = sums["pixels"].log_rate.n
    report["n_left_out"] = n_left_out
    return report


@dataclass(frozen=True)
class _Pixels:
    """Pixels of one area whose truth is known."""

    truth: np.ndarray
    mean: np.ndarray
    level: np.ndarray
    weight: np.ndarray
    observed: float


@dataclass
class _Sums:
    """Everything that is added up over pixels, for one way of weighting them."""

    levels: Sequence[float]
    rate: PairMoments = field(default_factory=PairMoments)
    log_rate: PairMoments = field(default_factory=PairMoments)
    within: PairMoments = field(default_factory=PairMoments)
    flat_rate: PairMoments = field(default_factory=PairMoments)
    flat_log_rate: PairMoments = field(default_factory=PairMoments)
    weight: float = 0.0

    def __post_init__(self) -> None:
        self.covered = np.zeros(len(self.levels))

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
        if pixels.observed > 0:
            flat = np.full(weight.shape[0], pixels.observed)
            self.flat_rate.add(pixels.truth, flat, weight)
            self.flat_log_rate.add(log_truth, np.log(flat), weight)
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
            "observed_rate": {
                "log_rate": self.flat_log_rate.summary(),
                "rate": self.flat_rate.summary(),
            },
        }


def truth_of_block(
    source: RasterSource, grid: Grid, pixel: np.ndarray, offsets: np.ndarray
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
    source: RasterSource,
    n_thread: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Score the probabilities of pixels against what the pixels truly are.

    Ranks need all pixels at once: 10 bytes a pixel are held. A pixel on a border counts once in
    each area it touches.

    Parameters
    ----------
    model : fitted model
        With ``predict_pixels``.
    store : BagStore
        The pixels in areas.
    source : RasterSource
        1 where a pixel is positive, else 0; aligned with the store's grid.
    n_thread : int
        Blocks predicted at the same time; one a core where not given.
    advance : callable, optional
        Called with the number of areas done after each block.

    Returns
    -------
    dict
        ``pixels``: scores of the map, as of :func:`pipeline.evaluation.label_scores.label_scores`;
        ``positive_areas``: the same for the pixels of positive areas alone, where labels say
        nothing of who is who; ``area_label``: ``auc``, ``accuracy`` and ``f1`` of giving each
        pixel its area's label; ``n_pix``, ``n_left_out`` (truth missing).
    """

    def compute(number: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        block = store.read_block(number)
        truth = truth_of_block(source, store.grid, store.read_pixel(number), block.offsets)
        known = np.isfinite(truth)
        label = np.repeat(block.y, np.diff(block.offsets)) > 0.5
        predicted = np.asarray(model.predict_pixels(block.x, block.coords).mean)
        return block.n_bag, truth[known] > 0.5, label[known], np.where(known, predicted, np.nan)

    truths, labels, probabilities, n_left_out = [], [], [], 0
    for n_bag, truth, label, predicted in map_in_order(compute, range(store.n_block), n_thread):
        known = np.isfinite(predicted)
        n_left_out += int((~known).sum())
        truths.append(truth)
        labels.append(label)
        probabilities.append(predicted[known])
        if advance:
            advance(n_bag)
    truth, label, predicted = (np.concatenate(part) for part in (truths, labels, probabilities))
    flat = label_scores(truth, label.astype(np.float64))
    return {
        "pixels": label_scores(truth, predicted),
        "positive_areas": label_scores(truth[label], predicted[label]),
        "area_label": {"auc": flat["auc"], **decision_scores(truth, label)},
        "n_pix": int(truth.size),
        "n_left_out": n_left_out,
    }
