"""Totals of what the predict stage makes: of the maps, and of the table of areas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from geo.core.errors import name_first
from pipeline.products.areas import AreaDraws, count_ends
from pipeline.products.monte_carlo import standard_error
from pipeline.products.tile_pass import Consumer
from pipeline.products.tile_pixels import TilePixels

N_NAMED = 3  # areas that differ most
SURE = 0.99  # central probability outside which totals are told to differ, whatever the output's


class MapTotals(Consumer):
    """Sums the people and the cases of the mapped pixels.

    Attributes
    ----------
    result : dict
        ``people`` inside areas and ``people_outside`` of the predicted pixels (km2 without a
        population); ``cases`` and ``cases_outside``, those of ``cases_mean.tif`` inside and
        outside areas, None if the run maps none; ``counted_twice``, the cases of the people that
        areas which overlap count again.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self._names: set[str] = set()

    def begin(self, pixels: TilePixels) -> list[float]:
        """Sum the pixels of a tile."""
        people, overlap = (pixels.band(v, 0.0, float) for v in (pixels.people, pixels.overlap))
        covered = pixels.band(pixels.covered, 0.0, float)
        given = pixels.values.get("cases_mean")
        cases = np.zeros(people.shape)
        if given is not None:
            cases = np.nan_to_num(pixels.band(given.astype(np.float64), 0.0, float))
        shares = covered, 1.0 - covered
        parts = [whole * share for whole in (people, cases) for share in shares]
        return [float(part.sum()) for part in (*parts, cases * overlap)]

    def add(self, pixels: TilePixels, found: list[float]) -> None:
        """Add the sums of a tile."""
        self._names |= set(pixels.values)
        self._sums = [total + part for total, part in zip(self._sums, found, strict=True)]

    @property
    def result(self) -> dict[str, float | None]:
        """See the class."""
        sums, maps_cases = self._sums, "cases_mean" in self._names
        return {
            "people": sums[0],
            "people_outside": sums[1],
            "cases": sums[2] if maps_cases else None,
            "cases_outside": sums[3] if "cases_outside_mean" in self._names else None,
            "counted_twice": sums[4] if maps_cases else None,
        }


def fitted_total(
    draws: AreaDraws,
    interval: float,
    deviations: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
) -> dict[str, float]:
    """Return the total over areas of the table, with its uncertainty, from joint draws.

    Parameters
    ----------
    draws : AreaDraws
        Of every area.
    interval : float
        Central probability of the intervals.
    deviations : (n_draws, n_bag) array, optional
        Of the draws from ``draws.mean``, where that is more exact than the mean of the draws: see
        :meth:`pipeline.products.area_factors.AreaFactors.deviations`.
    clusters : (n_draws, 2) int array, optional
        Draws that share what, see :func:`pipeline.products.monte_carlo.standard_error`.

    Returns
    -------
    dict
        ``mean``, the sum of the column ``fitted``; ``monte_carlo_se``, its standard error from the
        number of draws; ``lower`` and ``upper``, the interval of the total count, observation
        noise included; ``expected_lower`` and ``expected_upper``, that of its expectation;
        ``observed``; ``share_below``, the share of drawn totals below the observed one. Where
        counts are suppressed ``observed`` is the sum of the least that they may be,
        ``observed_most`` that of the most, and ``suppressed`` their number.
    """
    expected, counts = draws.expected.sum(axis=1), draws.counts.sum(axis=1)
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    lower, upper = count_ends(counts, interval)
    expected_lower, expected_upper = np.quantile(expected, tails)
    observed, most = float(draws.least.sum()), float(draws.most.sum())
    spread = expected if deviations is None else deviations.sum(axis=1)
    return {
        "mean": float(draws.mean.sum()),
        "monte_carlo_se": standard_error(spread, clusters),
        "interval": interval,
        "lower": float(lower),
        "upper": float(upper),
        "expected_lower": float(expected_lower),
        "expected_upper": float(expected_upper),
        "observed": observed,
        "share_below": float((counts < 0.5 * (observed + most)).mean()),
        **(
            {"observed_most": most, "suppressed": int(draws.suppressed.sum())}
            if draws.suppressed.any()
            else {}
        ),
    }


def explain_difference(
    total: dict[str, float],
    draws: AreaDraws,
    ids: list[str],
    model: Any,
    period: str | None = None,
) -> str | None:
    """Explain fitted and observed totals that differ by more than chance.

    The interval of the output may be one that misses half of all totals.

    Parameters
    ----------
    total : dict
        Of :func:`fitted_total`.
    draws : AreaDraws
    ids : list of str
        Id of each area, in the order of the store.
    model : fitted model
        Its parameters name the noise that lets totals differ.
    period : str, optional
        Of the map, where there are several.

    Returns
    -------
    str or None
        None if the observed total is inside the central `SURE` of the draws.
    """
    most = total.get("observed_most", total["observed"])
    lower, upper = count_ends(draws.counts.sum(axis=1), SURE)
    if lower <= most and total["observed"] <= upper:
        return None
    over = draws.mean - 0.5 * (draws.least + draws.most)
    sign = 1.0 if total["mean"] > total["observed"] else -1.0
    order = np.argsort(-sign * over)
    named = name_first([f"{ids[draws.bag[k]]} {over[k]:+,.0f}" for k in order[:N_NAMED]])
    return (
        f"the fitted total {total['mean']:,.0f}{f' of {period}' if period else ''} "
        f"({100 * SURE:g} % interval {lower:,.0f} to {upper:,.0f}) does not hold the observed "
        f"{observed_text(total)}: {_reason(model)}; fitted less observed is largest in {named}"
    )


def observed_text(total: Mapping[str, Any]) -> str:
    """Write the observed total of :func:`fitted_total`; with suppressed counts, between what."""
    least = f"{total['observed']:,.0f}"
    if not total.get("suppressed"):
        return least
    return f"{least} to {total['observed_most']:,.0f} ({total['suppressed']:,} suppressed)"


def _reason(model: Any) -> str:
    """Say what in the likelihood lets the totals differ."""
    own = model.named_hyperparameters() if hasattr(model, "named_hyperparameters") else {}
    if "area_sd" in own:
        return (
            f"the area effect (sd {own['area_sd']:.2g} of the log) makes the fit match areas by "
            "ratio, whatever their size, and its mean of 1 puts half of the areas below "
            f"{np.exp(-0.5 * own['area_sd'] ** 2):.2g} of their fitted count"
        )
    law = getattr(model, "resolved_likelihood", None)
    for name, parameter in ({} if law is None else law.named_parameters).items():
        if name in own and parameter.of_areas and not parameter.in_units:
            return (
                f"noise between areas ({name} {own[name]:.2g}) makes the fit match areas by "
                "ratio, whatever their size"
            )
    return "the rates that the covariates and the kernel allow cannot follow the areas"
