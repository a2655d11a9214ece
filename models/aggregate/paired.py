"""Surfaces of two fitted models drawn with the same random numbers, where the models allow it.

Two posteriors of one kind differ by what their data say. Drawn from the same random numbers, a pair
of surfaces shares what neither data set tells, so that their difference is free of it; drawn apart,
the uncertainty of both is in the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.aggregate.aggregate_model import RateDraws
from models.aggregate.rate_draws import PooledDraws, allocate
from models.aggregate.vbagg import VBAgg
from models.gp.draws import N_FEATURE, feature_share
from models.gp.priors import UNIT

STREAM_A, STREAM_B, STREAM_PAIRED = 1, 5, 6  # of the random numbers of a seed

#: Constants of a fit that are no part of its basis: the level of the rates, and limits of the fit.
_OWN = {"base_rate", "climb_pixels", "all_pixels", "level_unit"}


def what_differs(a: Any, b: Any) -> str | None:
    """Name what keeps the draws of two models from being paired; None if nothing does.

    Parameters
    ----------
    a, b : fitted models
    """
    if type(a) is not type(b):
        return "the kind of the model"
    if not isinstance(a, VBAgg):
        return None  # one surface each: there is nothing to pair
    of_a, of_b = a.fitted_state(), b.fitted_state()
    if a.kernel_text(of_a.fixed) != b.kernel_text(of_b.fixed):
        return "the kernel"
    if a.link_name != b.link_name:
        return "the link"
    if not _equal(of_a.params["w"], of_b.params["w"]):
        return "the inducing points"
    names = {
        name
        for name in {*of_a.fixed, *of_b.fixed} - _OWN
        if not name.startswith(UNIT)  # of the noise: no part of the basis either
    }
    if not all(_equal(of_a.fixed.get(name), of_b.fixed.get(name)) for name in names):
        return "the scaling of the covariates or of the places"
    shapes = [tuple(s.params[n].shape for n in ("theta", "v_mean")) for s in (of_a, of_b)]
    return None if shapes[0] == shapes[1] else "the kernel"


def draw_pair(
    a: Any, b: Any, n_draws: int, seed: int, *, paired: bool
) -> tuple[RateDraws, RateDraws]:
    """Draw surfaces of two models: draw ``i`` of one belongs to draw ``i`` of the other.

    Parameters
    ----------
    a, b : fitted models
        With ``sample_functions``.
    n_draws : int
        Surfaces of each.
    seed : int
    paired : bool
        Draw with the same random numbers; :func:`what_differs` must have found nothing. Models
        that are equal then give equal surfaces, bit by bit.
    """
    if not paired or not isinstance(a, VBAgg):
        one, other = (
            model.sample_functions(n_draws, np.random.default_rng([seed, stream]))
            for model, stream in ((a, STREAM_A), (b, STREAM_B))
        )
        return one, other
    posteriors = [model.posterior_ for model in (a, b)]
    # The same stream for both: a draw takes the same quantile of the parts of each.
    chosen = [
        allocate(each.weight, n_draws, np.random.default_rng([seed, STREAM_PAIRED]))
        for each in posteriors
    ]
    # Draws of the same two parts are drawn together, by random numbers of their own.
    couples, group = np.unique(np.stack(chosen, axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    size = np.bincount(group)
    pooled = []
    for side, posterior in enumerate(posteriors):
        parts = [
            posterior.parts[couple[side]].draws(
                int(size[k]),
                np.random.default_rng([seed, STREAM_PAIRED, k]),
                feature_share(size[k] / n_draws) if len(couples) > 1 else N_FEATURE,
            )
            for k, couple in enumerate(couples)
        ]
        pooled.append(PooledDraws.of(parts, group))
    return pooled[0], pooled[1]


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other))
