r"""Draws of the hyperparameters from their posterior by the areas' evidence.

A Metropolis chain on the evidence and the priors (:mod:`models.aggregate.area_evidence`). It starts
at the fit's optimum. Its steps have the shape of the Hessian there; or move one parameter far, for
those of which the data tell little; or draw noise between areas, variance and length-scale of space
anew, in proportion to the evidence on a grid of the three. The last cross between the two
explanations of counts that differ between neighbouring areas: noise, and a short field.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

import numpy as np

from models.aggregate.area_evidence import Evidence
from models.aggregate.matched_draws import matched_draws
from models.core.protocol import Arrays, State
from models.gp.kernel_terms import split_terms
from models.gp.kernels import Kernel
from models.gp.priors import unit_of
from models.likelihoods.likelihood import Likelihood

KEPT, KEPT_EACH = 1200, 120  # steps of the chain: at most, and for each draw that is asked for
WARM_SHARE = 0.25  # steps before them, beside them
REACH = 12.0  # of a logarithm from the optimum
FAR = 2.0  # deviation of a step of one parameter, logarithms
ACCEPTED = 0.25  # share of the steps of all parameters, that their length aims at
SDS = np.log([0.015, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.65, 0.95, 1.4])
SPREADS = np.log([0.1, 0.2, 0.35, 0.6, 1.0, 1.7])  # deviations of the field, in large ones
SIDES = np.log([0.15, 0.3, 0.6, 1.2, 2.4, 5.0, 12.0])  # length-scales, in sides of an area
EXPLANATIONS = ("noise between areas", "a field shorter than an area", "a field wider than an area")
AGREE = 6.0  # nats that half the draws of one period may be above the optimum of the bound
ANYWHERE = 0.1  # share of the jumps that the grid's evidence does not rule


class Explorable(Protocol):
    """What a chain asks of the evidence around a fit.

    Attributes
    ----------
    large_sd : float
        A large deviation of ``f``.
    side : float
        Of a typical area, in scaled coordinates.
    """

    large_sd: float
    side: float

    def at(self, x: np.ndarray) -> Evidence | None:
        """Evaluate at hyperparameters without the mean; None where there is no value."""

    def noise_share(self, x: np.ndarray, sd: float) -> float:
        """Return the noise's share in the variance between neighbouring areas."""


@dataclass(frozen=True)
class Places:
    """Where ``phi`` has what stands for one another.

    Attributes
    ----------
    noise, variance, length : int
        The noise between areas; variance and length-scale of space.
    power, unit : float
        The noise's deviation is ``exp(power (phi[noise] - unit))`` in units of the responses'.
    of_factor : bool
        Whether the noise is that of a factor on the mean: its deviation has no unit then.
    """

    noise: int
    variance: int
    length: int
    power: float
    unit: float = 0.0
    of_factor: bool = True

    @property
    def three(self) -> np.ndarray:
        """Places among the parameters without the mean: (3,) int64."""
        return np.array([self.noise, self.variance, self.length]) - 1

    def sd(self, phi: np.ndarray) -> np.ndarray:
        """Return the noise's deviation of each row of ``phi`` (n, n_phi).

        That of the factor, or in units of the responses' deviation, as the surface is.
        """
        unit = 0.0 if self.of_factor else self.unit
        return np.asarray(np.exp(self.power * (phi[:, self.noise] - unit)))

    def lattice(self, large_sd: float, side: float) -> list[np.ndarray]:
        """Return the grid's logarithms, of each of the three."""
        return [
            self.unit + np.sort(SDS / self.power),
            2.0 * (SPREADS + np.log(large_sd)),
            SIDES + np.log(side),
        ]


def find_places(kernel: Kernel, likelihood: Likelihood, fixed: Arrays) -> Places | None:
    """Find the parameters of the noise between areas and of a term of space; None without both.

    Parameters
    ----------
    kernel : Kernel
    likelihood : Likelihood
    fixed : dict of arrays
        Constants of the fit: units of the likelihood's parameters.
    """
    noisy = [
        (number, each.excess_power, fixed.get(unit_of(name), np.zeros(1)))
        for number, (name, each) in enumerate(likelihood.parameters.items())
        if each.of_areas and each.excess_power is not None
    ]
    spatial = [
        term
        for term in split_terms(kernel)
        if getattr(term.kernel, "spatial", False) and term.kernel.n_theta == 2
    ]
    if not noisy or not spatial:
        return None
    number, power, unit = noisy[-1]
    variance, length = (1 + spatial[-1].places).tolist()
    place = 1 + kernel.n_theta + number
    return Places(place, variance, length, power, float(unit[0]), likelihood.positive)


@dataclass(frozen=True)
class Chain:
    """Draws of the hyperparameters.

    Attributes
    ----------
    phi : (n_draw, n_phi) float64
        Mean, the kernel's parameters and the likelihood's own.
    fall : (n_draw,) float64
        Nats below the optimum, by the evidence; the mean at its best.
    noise : (n_draw,) float64
        Share of the noise in the variance between neighbouring areas; 0 where it is not known.
    """

    phi: np.ndarray
    fall: np.ndarray
    noise: np.ndarray

    @property
    def told(self) -> np.ndarray:
        """What a user reads of it: (4, n_phi) float64.

        Ends and median of the central 90 % interval (lower, median, upper), and the number of
        independent draws that say as much of the mean.
        """
        quantiles = np.quantile(self.phi, [0.05, 0.5, 0.95], axis=0)
        return np.vstack([quantiles, effective_size(self.phi)])

    def representatives(self, n: int) -> np.ndarray:
        """Return the places of ``n`` draws with the moments of all, by strata of the noise."""
        return matched_draws(self.phi, self.noise, n)


def effective_size(draws: np.ndarray) -> np.ndarray:
    """Return how many independent draws would have a mean as sure: (n_dim,) float64.

    ``n / (1 + 2 sum rho)``, summed over pairs of lags as long as a pair is positive (Geyer 1992,
    Practical Markov chain Monte Carlo, Statistical Science 7, section 3.3).

    Parameters
    ----------
    draws : (n, n_dim) float64
        Of a chain, in its order.
    """
    n = draws.shape[0]
    x = draws - draws.mean(axis=0)
    spectrum = np.fft.rfft(x, 2 * n, axis=0)
    lagged = np.fft.irfft(spectrum * spectrum.conj(), axis=0)[:n]
    with np.errstate(invalid="ignore"):
        pairs = (lagged[: n // 2 * 2] / lagged[0]).reshape(n // 2, 2, -1).sum(axis=1)
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    time = 2.0 * np.where(positive, pairs, 0.0).sum(axis=0) - 1.0
    return np.asarray(np.where(lagged[0] > 0, n / np.maximum(time, 1.0), 1.0))


def explanations(chain: Chain, places: Places | None, side: float) -> np.ndarray:
    """Tell what the draws hold to be behind counts that differ between neighbouring areas.

    Parameters
    ----------
    chain : Chain
    places : Places or None
    side : float
        Of a typical area, in scaled coordinates.

    Returns
    -------
    (3, 4) float64
        A row for each of :data:`EXPLANATIONS`: the share of the draws, and their medians of the
        noise's deviation and of the field's variance and length-scale. Empty where there is no
        noise or no field.
    """
    if places is None:
        return np.zeros((0, 4))
    noisy = chain.noise > 0.5
    short = chain.phi[:, places.length] < np.log(side)
    rows = []
    for own in (noisy, ~noisy & short, ~noisy & ~short):
        others = np.exp(chain.phi[own][:, [places.variance, places.length]])
        values = np.column_stack([places.sd(chain.phi[own]), others])
        middle = np.median(values, axis=0) if own.any() else np.full(3, np.nan)
        rows.append([own.mean(), *middle])
    return np.array(rows)


def told_explanations(state: State) -> list[dict[str, Any]]:
    """Return the explanations that a fit found to have any weight.

    Of each ``explains``, one of :data:`EXPLANATIONS`; ``weight``, which add up to 1; and medians of
    ``area_sd``, ``field_sd`` and ``range_km``.
    """
    scale = float(state.fixed["coord_scale"][0]) if "coord_scale" in state.fixed else 1.0
    return [
        {
            "explains": name,
            "weight": float(weight),
            "area_sd": float(sd),
            "field_sd": float(np.sqrt(variance)),
            "range_km": float(scale * length),
        }
        for name, (weight, sd, variance, length) in zip(
            EXPLANATIONS, state.memory.get("explained", ()), strict=False
        )
        if weight > 0
    ]


def told_draws(state: State) -> dict[str, float]:
    """Return how sure the draws of a fit are; empty without any.

    Returns
    -------
    dict
        ``n_effective``: where they are of a chain, the number of independent draws that say as much
        of the hyperparameter that is known least; ``n`` draws are mixed, ``nearer`` of which were
        brought nearer to the optimum, because the bound does not bear them out.
    """
    found = {}
    if "chain" in state.memory:
        found["n_effective"] = float(state.memory["chain"][3].min())
    if "nearer" in state.memory:
        found["n"] = float(state.members["weight"].size)
        found["nearer"] = float(state.memory["nearer"])
    return found


class Jumps:
    """Independent draws of three parameters, from boxes around the points of a grid."""

    def __init__(self, value: np.ndarray, lattice: list[np.ndarray]) -> None:
        self._edges = []
        for points in lattice:
            middle = 0.5 * (points[1:] + points[:-1])
            first, last = 2 * points[0] - middle[0], 2 * points[-1] - middle[-1]
            self._edges.append(np.concatenate([[first], middle, [last]]))
        widths = [np.diff(edges) for edges in self._edges]
        volume = widths[0][:, None, None] * widths[1][:, None] * widths[2]
        density = np.exp(value - value.max())
        density = (1 - ANYWHERE) * density / (density * volume).sum() + ANYWHERE / volume.sum()
        self._density = density
        self._probability = (density * volume).ravel()
        self._probability /= self._probability.sum()

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the three: (3,)."""
        box = np.unravel_index(
            rng.choice(self._probability.size, p=self._probability), self._density.shape
        )
        low = np.array([edges[at] for edges, at in zip(self._edges, box, strict=True)])
        high = np.array([edges[at + 1] for edges, at in zip(self._edges, box, strict=True)])
        return np.asarray(rng.uniform(low, high))

    def log_density(self, x: np.ndarray) -> float:
        """Return the log density of a draw (3,)."""
        box = [int(np.searchsorted(e, v)) - 1 for e, v in zip(self._edges, x, strict=True)]
        if any(at < 0 or at >= n for at, n in zip(box, self._density.shape, strict=True)):
            return -np.inf
        return float(np.log(self._density[tuple(box)]))


def explore(
    evidence: Explorable,
    phi: np.ndarray,
    covariance: np.ndarray,
    places: Places | None,
    seed: int,
    n_draw: int = KEPT // KEPT_EACH,
    *,
    agree: float = AGREE,
    jumps: Jumps | None = None,
) -> Chain | None:
    """Draw hyperparameters around a fit.

    Parameters
    ----------
    evidence : Explorable
    phi : (n_phi,) float64
        The fit's: mean, the kernel's parameters, the likelihood's own.
    covariance : (n_phi, n_phi) float64
        Shape of the steps of all parameters.
    places : Places or None
        None where noise and field do not stand for one another.
    seed : int
    n_draw : int
        Representatives that the chain is for: it is shorter for few.
    agree : float
        Nats that half the draws may be above the fit: it is at the optimum of the bound.
    jumps : Jumps, optional
        Those of an evidence like this one: their density is accounted for.

    Returns
    -------
    Chain
        Or None where the evidence has no value at the fit, or is not that of the fit's bound.
    """
    rng = np.random.default_rng([seed, 11])
    start = phi[1:]
    kept = min(KEPT, KEPT_EACH * n_draw)
    warm = round(WARM_SHARE * kept)

    def at(x: np.ndarray) -> Evidence | None:
        return evidence.at(x) if np.abs(x - start).max() <= REACH else None

    first = evidence.at(start)
    if first is None:
        return None
    if jumps is None:
        jumps = find_jumps(evidence, phi, places)
    three = np.zeros(0, dtype=np.int64) if places is None else places.three
    root = np.linalg.cholesky(covariance[1:, 1:] + 1e-10 * np.eye(start.size))
    x, here, scale = start, first, 2.4 / np.sqrt(start.size)
    draws, found = [], []
    for step in range(warm + kept):
        kind, back = rng.random(), 0.0
        y = x.copy()
        if kind < 0.5 or start.size == 0:
            y = x + scale * (root @ rng.standard_normal(start.size))
        elif kind < 0.8 or jumps is None:
            y[rng.integers(start.size)] += FAR * rng.standard_normal()
        else:
            y[three] = jumps.draw(rng)
            back = jumps.log_density(x[three]) - jumps.log_density(y[three])
        there = at(y)
        gain = -np.inf if there is None else there.value - here.value + back
        if there is not None and np.log(rng.random()) < gain:
            x, here = y, there
        if kind < 0.5 and step < warm:
            rate = float(np.exp(min(gain, 0.0)))
            scale *= float(np.exp((rate - ACCEPTED) / np.sqrt(1.0 + 0.2 * step)))
        if step >= warm:
            draws.append(x)
            found.append(here)
    mean = np.array([each.mean for each in found]) - first.mean + phi[0]
    mean += rng.standard_normal(mean.size) / np.sqrt([each.precision for each in found])
    theta = np.stack(draws)
    drawn, noise = np.column_stack([mean, theta]), np.zeros(mean.size)
    if places is not None:
        # A step that is not taken leaves the draw before it once more.
        own, row = np.unique(theta, axis=0, return_index=True, return_inverse=True)[1:]
        each = zip(theta[own], places.sd(drawn[own]), strict=True)
        noise = np.array([evidence.noise_share(x, sd) for x, sd in each])[row.ravel()]
    fall = first.value - np.array([each.value for each in found])
    # The fit is at the optimum of the bound. Where most draws are far above it the evidence is
    # another function than the bound, and tells nothing of the posterior.
    return Chain(drawn, fall, noise) if np.median(fall) > -agree else None


def find_jumps(evidence: Explorable, phi: np.ndarray, places: Places | None) -> Jumps | None:
    """Return jumps by the evidence on the grid, the other parameters as they are.

    Parameters
    ----------
    evidence : Explorable
    phi : (n_phi,) float64
        The fit's.
    places : Places or None
        No jumps where noise and field do not stand for one another.
    """
    if places is None:
        return None
    lattice = places.lattice(evidence.large_sd, evidence.side)
    value = np.full(tuple(map(len, lattice)), -np.inf)
    # The noise last: covariances of the field are kept while it alone changes.
    for *field, noise in product(*map(range, value.shape[1:]), range(value.shape[0])):
        box, x = (noise, *field), phi[1:].copy()
        x[places.three] = [points[at] for points, at in zip(lattice, box, strict=True)]
        there = evidence.at(x)
        if there is not None:
            value[box] = there.value
    return Jumps(value, lattice) if np.isfinite(value).any() else None
