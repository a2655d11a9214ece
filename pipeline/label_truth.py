"""A map of probabilities against the true labels of pixels, where a country is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from geo.raster import RasterSource
from pipeline.label_scores import decision_scores, label_scores
from pipeline.ordered import map_in_order
from pipeline.truth import truth_of_block


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
        ``pixels``: scores of the map, as of :func:`pipeline.label_scores.label_scores`;
        ``positive_areas``: the same for the pixels of positive areas alone, where labels say
        nothing of who is who; ``area_label``: ``auc``, ``accuracy`` and ``f1`` of giving each
        pixel its area's label; ``n_pix``, ``n_left_out`` (truth missing).
    """

    def compute(number: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        block = store.read_block(number)
        truth = truth_of_block(source, store.grid, store.read_pixel(number), block.offsets)
        known = np.isfinite(truth)
        label = np.repeat(block.y, np.diff(block.offsets)) > 0.5
        said = np.asarray(model.predict_pixels(block.x, block.coords).mean)
        return block.n_bag, truth[known] > 0.5, label[known], np.where(known, said, np.nan)

    truths, labels, probabilities, n_left_out = [], [], [], 0
    for n_bag, truth, label, said in map_in_order(compute, range(store.n_block), n_thread):
        known = np.isfinite(said)
        n_left_out += int((~known).sum())
        truths.append(truth)
        labels.append(label)
        probabilities.append(said[known])
        if advance:
            advance(n_bag)
    truth, label, said = (np.concatenate(part) for part in (truths, labels, probabilities))
    flat = label_scores(truth, label.astype(np.float64))
    return {
        "pixels": label_scores(truth, said),
        "positive_areas": label_scores(truth[label], said[label]),
        "area_label": {"auc": flat["auc"], **decision_scores(truth, label)},
        "n_pix": int(truth.size),
        "n_left_out": n_left_out,
    }
