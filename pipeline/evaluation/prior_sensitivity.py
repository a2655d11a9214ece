r"""How much headline figures depend on the priors, by power-scaling.

A prior raised to a power ``a`` re-weighs the draws of the hyperparameters, without a new fit:

    w_s(a)  proportional to  w_s p(phi_s)^(a - 1)

(Kallioinen, Paananen, Buerkner & Vehtari 2024, Detecting and diagnosing prior and likelihood
sensitivity with power-scaling, Statistics and Computing 34). Powers of 0.8 and 1.25 make it a
little weaker and a little stronger. The *shift* of a figure is the change of its mean for a
doubling of the power, in posterior standard deviations; from 0.3 on it is called strong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.gp.priors import log_prior, log_prior_noise, side_of
from pipeline.evaluation.posterior import Posterior
from pipeline.training.update import FEW_MEMBERS

POWERS = (0.8, 1.25)
STRONG = 0.3  # shift of a figure's mean for twice the power, posterior standard deviations
TOP_AREAS = 3
FEWEST = 3.0  # draws that weights must leave, by their effective number
PRIORS = {
    "area_effect": "the noise of areas",
    "range": "length-scales",
    "slopes": "slopes",
    "size": "the size of the smooth parts",
}


@dataclass(frozen=True)
class Figure:
    """A headline figure under each draw.

    Attributes
    ----------
    name : str
    value : (n,) float64 array
    weight : (n,) float64 array
        Of the draws.
    member : (n,) int array
        Draw of the hyperparameters that each belongs to.
    within : float
        Variance of the figure given the hyperparameters, beside that of ``value``.
    """

    name: str
    value: np.ndarray
    weight: np.ndarray
    member: np.ndarray
    within: float = 0.0

    def mean(self, log_scale: np.ndarray) -> float:
        """Return the mean after weights are multiplied by ``exp(log_scale[member])``."""
        weight = scaled_weights(self.weight, log_scale[self.member])
        return float(weight @ self.value)

    @property
    def sd(self) -> float:
        """Posterior standard deviation."""
        weight = self.weight / self.weight.sum()
        mean = weight @ self.value
        return float(np.sqrt(weight @ (self.value - mean) ** 2 + self.within))


def prior_sensitivity(
    model: Any, posterior: Posterior, ids: list[str], rate_per: float, inputs: Sequence[str]
) -> dict[str, Any]:
    """Re-weigh the draws of the hyperparameters by stronger and weaker priors.

    Parameters
    ----------
    model : fitted model
    posterior : Posterior
        Its draws of the areas.
    ids : list of str
        Id of each area, in the order of ``posterior``.
    rate_per : float
        People in the denominator of rates.
    inputs : sequence of str
        Name of each column of the model's inputs.

    Returns
    -------
    dict
        ``absent`` with the reason; or ``powers``, ``figures`` (by name ``mean`` and ``sd``),
        ``priors`` (by name of the prior and of the figure: ``weaker`` and ``stronger``, the means
        under the two powers, ``shift`` and ``strong``; ``n_effective`` draws) and ``sentences``.
    """
    reason = _absent(model)
    if reason is not None:
        return {"absent": reason}
    figures = list(_figures(model, posterior, ids, rate_per, inputs))
    found: dict[str, Any] = {
        "powers": list(POWERS),
        "figures": {
            each.name: {"mean": each.mean(np.zeros_like(_weight(model))), "sd": each.sd}
            for each in figures
        },
        "priors": {},
        "sentences": [],
    }
    for name, log_density in prior_densities(model).items():
        scales = [(power - 1.0) * log_density for power in POWERS]
        effective = min(
            1.0 / float((scaled_weights(_weight(model), scale) ** 2).sum()) for scale in scales
        )
        rows: dict[str, Any] = {}
        for each in figures:
            weaker, stronger = (each.mean(scale) for scale in scales)
            doublings = float(np.log2(POWERS[1] / POWERS[0]))
            shift = (stronger - weaker) / each.sd / doublings if each.sd > 0 else 0.0
            strong = abs(shift) > STRONG
            rows[each.name] = {
                "weaker": weaker, "stronger": stronger, "shift": shift, "strong": strong
            }  # fmt: skip
        found["priors"][name] = {"n_effective": effective, **rows}
        moved = [f"{key} {row['shift']:+.2g}" for key, row in rows.items() if row["strong"]]
        if moved:
            few = "; few draws carry this finding" if effective < FEWEST else ""
            found["sentences"].append(
                f"twice the weight on the prior of {PRIORS[name]} would move, in standard "
                f"deviations of each: {', '.join(moved)}; there the prior decides beside the "
                f"data{few}"
            )
    return found


def scaled_weights(weight: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Return weights times ``exp(log_scale)``, (n,), adding up to one."""
    scaled = weight * np.exp(log_scale - log_scale.max())
    return np.asarray(scaled / scaled.sum())


def prior_densities(model: Any) -> dict[str, np.ndarray]:
    """Return the log density of each prior at each draw of the hyperparameters, less a constant.

    The density of a kernel is a product over its parameters: that of some of them is that of all
    with the others held at the optimum.

    Parameters
    ----------
    model : fitted model
        With several draws of its hyperparameters.

    Returns
    -------
    dict of (n_member,) arrays
        By the names in ``PRIORS``; those that the model lacks, or that are flat, are left out.
    """
    fixed, each = model.fitted_params(), [part.params for part in model.posterior_.parts]
    kernel, mode = model.posterior_.parts[0].kernel, fixed["theta"]

    def density(theta: np.ndarray) -> float:
        return log_prior(kernel, theta, model.link_name, side_of(fixed))[0]

    of = np.array([_prior_of(name) for name in kernel.names])
    found: dict[str, np.ndarray] = {}
    for prior in ("range", "slopes", "size"):
        values = [density(np.where(of == prior, own["theta"], mode)) for own in each]
        found[prior] = np.array(values) - density(mode)
    likelihood = model.resolved_likelihood
    noise = [
        log_prior_noise(likelihood, {name: own[name] for name in likelihood.parameters}, fixed)[0]
        for own in each
    ]
    found["area_effect"] = np.array(noise)
    return {name: value for name, value in found.items() if np.ptp(value) > 0}


def _prior_of(name: str) -> str:
    if ".lengthscale" in name:
        return "range"
    return "slopes" if name.startswith(("linear", "ridge")) else "size"


def _weight(model: Any) -> np.ndarray:
    return np.asarray(model.posterior_.weight, dtype=np.float64)


def _absent(model: Any) -> str | None:
    if _weight(model).size < 2:
        return "the hyperparameters are not integrated: there are no draws of them to weigh"
    if model.priors == "none":
        return "the model has no priors on its hyperparameters"
    weight = _weight(model)
    left = float(1.0 / (weight**2).sum())
    if left < FEW_MEMBERS and weight.size > 2 * FEW_MEMBERS:
        return (
            f"few draws of the hyperparameters suit the counts ({left:.1f} of {weight.size}): "
            "their weights tell nothing of the priors until a new fit"
        )
    return None


def _figures(
    model: Any, posterior: Posterior, ids: list[str], rate_per: float, inputs: Sequence[str]
) -> Iterator[Figure]:
    areas, weight = posterior.areas, _weight(model)
    member = posterior.member
    even = np.full(posterior.n_draws, 1.0 / posterior.n_draws)
    yield Figure("total", areas.expected.sum(axis=1), even, member)
    exposed = areas.exposure > 0
    rate = np.where(exposed, areas.mean / np.where(exposed, areas.exposure, 1.0), -np.inf)
    for at in np.argsort(-rate, kind="stable")[: min(TOP_AREAS, int(exposed.sum()))]:
        value = rate_per * areas.expected[:, at] / areas.exposure[at]
        yield Figure(f"rate of {ids[areas.bag[at]]}", value, even, member)
    parts, one = model.posterior_.parts, np.arange(weight.shape[0])
    named = [part.hyperparameters() for part in parts]
    parameters = model.resolved_likelihood.named_parameters
    noises = {name for name, parameter in parameters.items() if parameter.of_areas}
    for name in named[0]:
        if name in noises or ("_space" in name and ".lengthscale" in name):
            yield Figure(name, np.array([values[name] for values in named]), weight, one)
    for same in zip(*(part.coefficients() for part in parts), strict=True):
        within = float(weight @ np.array([slope.sd**2 for slope in same]) / weight.sum())
        value = np.array([slope.mean for slope in same])
        yield Figure(f"slope[{inputs[same[0].column]}]", value, weight, one, within)
