"""The rasters that a run can leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.config.schema import Config


@dataclass(frozen=True)
class Layer:
    """One raster of the results.

    Attributes
    ----------
    name : str
        Of the file, without its suffix.
    description, unit : str
        Written into the band.
    values : callable
        From a prediction of n_pix pixels and their people (n_pix,) to (n_pix,) values.
    """

    name: str
    description: str
    unit: str
    values: Callable[[Any, np.ndarray], np.ndarray]


def rate_unit(config: Config) -> str:
    """Say what a rate is: ``cases per 1,000 people``, or per km2 without a population.

    Of responses that are no counts, such as normal ones, it is a ``value per 1,000 people``.
    """
    per = f"{config.output.rate_per:,g}" if config.output.rate_per != 1 else ""
    what = "people" if config.population is not None else "km2"
    noun = "cases per" if config.model.response.counts else "value per"
    return " ".join(part for part in (noun, per, what) if part)


def layers(config: Config) -> list[Layer]:
    """List the rasters that a configuration asks for.

    Rates are per ``output.rate_per`` people; ``lower`` and ``upper`` bound the central
    ``output.interval`` of the rate (or probability) itself, without the noise of counts.
    """
    per, interval = config.output.rate_per, config.output.interval
    low, high = (1 - interval) / 2, (1 + interval) / 2
    unit, percent = rate_unit(config), f"{100 * interval:g} %"
    if config.labels is not None:
        return [
            Layer("probability_mean", "probability to be positive", "1", lambda p, _: p.mean),
            Layer(
                "probability_sd", "standard deviation of the probability", "1", lambda p, _: p.sd
            ),
            Layer(
                "probability_lower",
                f"lower end of the central {percent} interval of the probability",
                "1",
                lambda p, _: p.quantile(low),
            ),
            Layer(
                "probability_upper",
                f"upper end of the central {percent} interval of the probability",
                "1",
                lambda p, _: p.quantile(high),
            ),
        ]
    result = [
        Layer("rate_mean", "mean rate", unit, lambda p, _: per * p.mean),
        Layer("rate_sd", "standard deviation of the rate", unit, lambda p, _: per * p.sd),
        Layer(
            "rate_lower",
            f"lower end of the central {percent} interval of the rate",
            unit,
            lambda p, _: per * p.quantile(low),
        ),
        Layer(
            "rate_upper",
            f"upper end of the central {percent} interval of the rate",
            unit,
            lambda p, _: per * p.quantile(high),
        ),
        Layer("rate_median", "median rate", unit, lambda p, _: per * p.quantile(0.5)),
    ]
    if config.model.response.counts:  # a pixel's share of a value is no number of cases
        result.append(
            Layer("cases_mean", "expected cases", "cases", lambda p, people: p.mean * people)
        )
    for threshold in dict.fromkeys(config.output.exceedance):
        result.append(
            Layer(
                f"exceedance_{threshold:g}",
                f"probability that the rate is above {threshold:g} {unit}",
                "1",
                _exceedance(threshold / per),
            )
        )
    return result


def _exceedance(rate: float) -> Callable[[Any, np.ndarray], np.ndarray]:
    return lambda prediction, _: prediction.exceed(rate)
