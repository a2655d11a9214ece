"""Countries drawn from a model's own priors, for simulation-based calibration (Talts et al. 2018).

Hyperparameters come from the densities of :mod:`models.gp.priors`, read as functions: they
factorise into one density a parameter, which :class:`HyperPrior` checks and then inverts on a grid,
so that a change of the priors is followed. A field is a dense Gaussian draw under the exact kernel.

The model's prior of the ``mean`` is flat. It becomes proper where a country is accepted by its DATA
alone: by the total count, or by the share of positives (:data:`TOTALS`, :data:`SHARES`). The
posterior given data does not depend on which other data would have been thrown away. Given the
field, the mean is drawn uniformly over a range outside which such data are not seen, and whose
length does not depend on the field; all of a country is drawn anew until its data are accepted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from models import Bags, VBAgg
from models.backend.arrays import segment_sum
from models.core.block import BagBlock
from models.core.protocol import Arrays, State, Summary
from models.gp.priors import log_prior, log_prior_noise, side_of, unit_of
from models.gp.scaling import kernel_of, scaled_inputs
from models.likelihoods.observation import bag_weights
from models.training.executor import BagsSource

TOTALS = (500.0, 20_000.0)  # cases of a country of counts: 20 to 800 an area
SHARES = (0.05, 0.95)  # positives among those tested, where the link is probit
TESTED = (50, 500)  # of an area
GRID = np.linspace(-45.0, 45.0, 901)  # logarithm of a parameter
JITTER = 1e-9  # of the mean variance
MOST_TRIES = 1000
PriorDensity = Callable[[np.ndarray], tuple[float, np.ndarray]]


class KnownScale(VBAgg):
    """VBAgg whose unit of the rate is 1 under the identity link, not the responses' deviation.

    Under that link the priors are in units of the responses' deviation, an estimate that a country
    cannot be drawn from. Under the others the unit is 1, or moves the mean alone.
    """

    def init(self, sample: Summary, rng: np.random.Generator) -> State:
        """Start as VBAgg does, in units of 1 where the link is the identity."""
        state = super().init(sample, rng)
        if self.link_name == "identity":
            state.fixed["base_rate"] = np.array([1.0])
            state.params["mean"] = np.array([float(sample.y.sum() / sample.weight.sum())])
            own = self.resolved_likelihood.units(replace(sample, y=unit_responses(sample)))
            state.fixed.update({unit_of(name): np.array([unit]) for name, unit in own.items()})
        return state


def unit_responses(sample: Summary) -> np.ndarray:
    """Return responses whose deviation per unit of weight is 1: (n_bag,)."""
    sign = np.where(np.arange(sample.n_bag) % 2 == 0, 1.0, -1.0)
    sign -= sign.mean()
    return np.asarray(sample.weight * sign / sign.std())


@dataclass(frozen=True)
class HyperPrior:
    """Independent priors of the hyperparameters, all by their logarithms.

    Attributes
    ----------
    names : tuple of str
        Of the kernel's parameters, then of the likelihood's own that have a prior.
    cdf : (n_parameter, n_grid) float64
        Distribution function of each on :data:`GRID`.
    """

    names: tuple[str, ...]
    cdf: np.ndarray

    @classmethod
    def of(cls, names: tuple[str, ...], density: PriorDensity, seed: int = 0) -> HyperPrior:
        """Tabulate a density that factorises.

        Raises
        ------
        ValueError
            If it does not factorise, or a factor has no finite integral.
        """
        origin = np.zeros(len(names))
        level = density(origin)[0]
        each = np.empty((len(names), GRID.size))
        for k, j in np.ndindex(*each.shape):
            at = origin.copy()
            at[k] = GRID[j]
            each[k, j] = density(at)[0] - level
        for at in np.random.default_rng(seed).choice(GRID[350:-350], (20, len(names))):
            apart = sum(float(np.interp(v, GRID, row)) for v, row in zip(at, each, strict=True))
            together = density(at)[0] - level
            if abs(together - apart) > 1e-6 * (1.0 + abs(together)):
                msg = "the prior does not factorise by parameter; draw from it jointly"
                raise ValueError(msg)
        table = np.exp(each - each.max(axis=1, keepdims=True))
        if (table[:, [0, -1]] > 1e-6).any():
            flat = names[int(np.argmax(table[:, [0, -1]].max(axis=1)))]
            msg = f"the prior of {flat} has no finite integral; give it a proper one"
            raise ValueError(msg)
        steps = 0.5 * (table[:, 1:] + table[:, :-1])
        cdf = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
        return cls(names, cdf / cdf[:, -1:])

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw every parameter: (n_parameter,)."""
        return np.array(
            [
                np.interp(u, row, GRID)
                for u, row in zip(rng.random(len(self.names)), self.cdf, strict=True)
            ]
        )


def prior_with_gradient(model: VBAgg, fixed: Arrays) -> tuple[tuple[str, ...], PriorDensity]:
    """Return the names of the parameters under priors, and their joint log density and gradient.

    The only place that knows how :mod:`models.gp.priors` is called. Arguments of ``log_prior``
    besides kernel, parameters and link are looked up among the constants of the fit by name.

    Raises
    ------
    ValueError
        If there is no such constant.
    """
    kernel, likelihood = kernel_of(model.kernel_text(fixed), fixed), model.resolved_likelihood
    own = [name for name, each in likelihood.parameters.items() if each.excess_power is not None]
    known = {
        **fixed,
        "area_side": side_of(fixed),
        "fixed": fixed,
        "kernel": kernel,
        "link": model.link_name,
    }
    wanted = [name for name in inspect.signature(log_prior).parameters if name != "theta"]
    missing = [name for name in wanted if name not in known]
    if missing:
        msg = f"log_prior takes {missing[0]}, which the constants of a fit do not hold"
        raise ValueError(msg)
    given = {name: known[name] for name in wanted}

    def density(phi: np.ndarray) -> tuple[float, np.ndarray]:
        noise = {name: phi[kernel.n_theta + k :][:1] for k, name in enumerate(own)}
        value, by_theta = log_prior(theta=phi[: kernel.n_theta], **given)
        more, by_noise = log_prior_noise(likelihood, noise, fixed)
        return value + more, np.concatenate([by_theta, *(by_noise[name] for name in own)])

    return (*kernel.names, *own), density


@dataclass(frozen=True)
class Design:
    """Size of the countries."""

    n_side: int = 20
    n_area: int = 25
    n_feat: int = 2
    pixel_km: float = 5.0


@dataclass(frozen=True)
class Truth:
    """What a country was drawn from.

    Attributes
    ----------
    theta : (n_theta,) float64
    own : dict of float
        Logarithms of the likelihood's parameters.
    mean : float
    rate : (n_pix,) float64
        Per unit of weight.
    slopes : (n_feat,) float64
        Of ``f`` by a standard deviation of each covariate.
    eta : (n_bag,) float64
        Expected responses, or proportions.
    """

    theta: np.ndarray
    own: Mapping[str, float]
    mean: float
    rate: np.ndarray
    slopes: np.ndarray
    eta: np.ndarray


@dataclass(frozen=True)
class Country:
    """Bags of pixels, and the truth that only the simulation knows; ``n_tried`` to get them."""

    bags: Bags
    truth: Truth
    n_tried: int


def make_geometry(design: Design, rng: np.random.Generator) -> Bags:
    """Return pixels, covariates, areas and weights of a country, with responses of 1.

    Areas are the pixels nearest to random centres; one covariate is smooth, the next less so.
    Weights are log-normal about 1.
    """
    n = design.n_side
    at = np.stack(np.meshgrid(np.arange(n), np.arange(n), indexing="ij"), -1).reshape(-1, 2)
    centres = at[rng.choice(n * n, design.n_area, replace=False)] + 1e-3 * rng.random(
        (design.n_area, 2)
    )
    area = ((at[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    order = np.argsort(area, kind="stable")
    x = np.stack(
        [
            gaussian_filter(
                rng.standard_normal((n, n)), 0.2 * n / (1 + 2 * k), mode="reflect"
            ).ravel()
            for k in range(design.n_feat)
        ],
        axis=1,
    )
    weight = np.exp(0.7 * rng.standard_normal(n * n) - 0.245)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(area, minlength=design.n_area))])
    x, coords = (x - x.mean(axis=0)) / x.std(axis=0), design.pixel_km * at.astype(np.float64)
    trials = rng.integers(*TESTED, design.n_area, endpoint=True)
    ones = np.ones(design.n_area)
    return Bags(x[order], offsets, ones, weight[order], coords[order], trials)


def starting_state(model: VBAgg, bags: BagBlock) -> State:
    """Return a fit before its first step: its constants are the scalings and what priors need."""
    rng = np.random.default_rng(0)
    return model.init(BagsSource(bags, model.seed).summary(rng), rng)


def draw_country(model: VBAgg, design: Design, rng: np.random.Generator) -> Country:
    """Draw hyperparameters, field and responses from the model.

    Parameters
    ----------
    model : VBAgg
        Not fitted; its kernel must be linear in the covariates for the slopes to be such.
    design : Design
    rng : numpy Generator

    Raises
    ------
    RuntimeError
        If :data:`MOST_TRIES` countries in a row have data out of range.
    """
    bags = make_geometry(design, rng)
    fixed = starting_state(model, bags).fixed
    prior = HyperPrior.of(*prior_with_gradient(model, fixed))
    kernel, likelihood = kernel_of(model.kernel_text(fixed), fixed), model.resolved_likelihood
    z = scaled_inputs(fixed, bags.x, bags.coords, np.float64)
    p = bag_weights(likelihood, bags.weight, bags.offsets, 1.0)
    bag_data = likelihood.bag_data(bags.weight, bags.offsets, bags.trials)
    for n_tried in range(1, MOST_TRIES + 1):
        phi = prior.draw(rng)
        theta = phi[: kernel.n_theta]
        own = dict(zip(prior.names[kernel.n_theta :], phi[kernel.n_theta :].tolist(), strict=True))
        f, slopes = draw_field(kernel, theta, z, design.n_feat, rng)
        centre, half = mean_range(model.link_name, f, p)
        mean = float(rng.uniform(centre - half, centre + half))
        rate = model.resolved_link.value(mean + f)
        eta = segment_sum(p * rate, bags.offsets)
        y = likelihood.draw(eta[None], own, bag_data, rng)[0]
        if accepted(model.link_name, y, bags.trials):
            seen = Bags(
                bags.x, bags.offsets, y, bags.weight, bags.coords, trials_of(likelihood, bags)
            )
            return Country(seen, Truth(theta, own, mean, rate, slopes, eta), n_tried)
    msg = f"{MOST_TRIES} countries drawn from the priors have data out of range; widen the range"
    raise RuntimeError(msg)


def draw_field(
    kernel: Any, theta: np.ndarray, z: np.ndarray, n_feat: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``f`` without its mean at pixels (n_pix,), and its slopes by covariates (n_feat,).

    A slope is a difference of ``f`` between two inputs that differ by 1 in a covariate; these
    inputs are drawn jointly with the pixels.
    """
    foot = np.concatenate([np.zeros(n_feat), z[0, n_feat:]])
    steps = foot + np.eye(n_feat, z.shape[1])
    k = kernel.matrix(theta, *2 * (np.concatenate([z, foot[None], steps]),))
    k = 0.5 * (k + k.T)
    k[np.diag_indices_from(k)] += JITTER * np.trace(k) / k.shape[0]
    f = np.linalg.cholesky(k) @ rng.standard_normal(k.shape[0])
    n_pix = z.shape[0]
    return f[:n_pix], f[n_pix + 1 :] - f[n_pix]


def mean_range(link: str, f: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """Return centre and half length of the range that the mean is drawn from.

    Outside it data are accepted with negligible probability; the length is the same for all
    fields. Under the identity link nothing depends on the mean but itself.
    """
    if link == "exp":
        top = float(f.max())
        total = top + np.log((p * np.exp(f - top)).sum())
        return 0.5 * float(np.log(TOTALS).sum()) - total, 0.5 * np.log(
            TOTALS[1] / TOTALS[0]
        ) + np.log(3.0)
    if link == "probit":
        return -float(np.median(f)), 8.0
    return 0.0, 1.0


def accepted(link: str, y: np.ndarray, trials: np.ndarray | None) -> bool:
    """Say whether data are in the range that the calibration is about; by the data alone."""
    if link == "exp":
        return bool(TOTALS[0] <= y.sum() <= TOTALS[1])
    if link == "probit" and trials is not None:
        return bool(SHARES[0] <= y.sum() / trials.sum() <= SHARES[1])
    return True


def trials_of(likelihood: Any, bags: Bags) -> np.ndarray | None:
    """Return the numbers tested where the likelihood needs them."""
    return bags.trials if likelihood.needs_trials else None
