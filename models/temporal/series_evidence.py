r"""The evidence of the hyperparameters of several periods, by regression between areas and periods.

Around a fit, the aggregate of an area and a period is linear in ``f`` to first order, with a
Gaussian site (:mod:`models.aggregate.area_evidence`). Between areas ``a`` and periods ``t`` the
prior covariance of the aggregates is

    cov(v_at, v_a't') = sum_j k_j(t - t') cov(b_at' h_j, b_a't'' h_j),

a sum over terms, each a kernel in time times a covariance of averages over pixels. So the evidence
is that of Gaussian regression, without inducing variables and without a bound: a second route to
what the fit climbs, and cheap enough for a chain where areas times periods are some hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from models.aggregate.area_evidence import (
    CLOSE,
    LONGEST,
    MOST_STEPS,
    Evidence,
    Regression,
    level_site,
    nearest,
    regress,
)
from models.aggregate.hyperparameter_chain import Places
from models.aggregate.linearised import Linearised, Sites
from models.core.block import BagBlock
from models.core.protocol import Arrays, State
from models.gp.area_kernel import Areas
from models.gp.average_covariance import AverageCovariance
from models.gp.kernel_model import exactly
from models.gp.kernel_terms import split_terms, whole_kernel
from models.gp.kernels import Kernel
from models.gp.priors import log_prior, log_prior_noise, side_of
from models.temporal.temporal_model import TemporalModel
from models.temporal.time_text import STILL

LEAST = 1e-12


class SeriesEvidence:
    """``log Z`` around a fit of several periods, as a chain asks for it.

    Parameters
    ----------
    model : TemporalModel
    state : State
        The fit.
    periods : mapping of int to (params, BagBlock)
        Of each period with responses, by number: what its blocks are evaluated with, and its bags,
        of few pixels each.

    Attributes
    ----------
    usable : bool
        Whether there is anything to expand.
    large_sd, side : float
        See :class:`models.aggregate.hyperparameter_chain.Explorable`.
    """

    def __init__(
        self,
        model: TemporalModel,
        state: State,
        periods: Mapping[int, tuple[Arrays, BagBlock]],
    ) -> None:
        self._model, self._fixed = model, state.fixed
        self._text = model.text(state.fixed)
        self._kernel = whole_kernel(model._kernel(state.fixed))
        self._likelihood, link = model.resolved_likelihood, model.resolved_link
        self._n_time = state.params["time"].size
        n_area = int(state.fixed["n_area"][0])
        around = {
            t: Linearised(model, state.fixed, exactly(params), bags)
            for t, (params, bags) in periods.items()
        }
        # The mean of a square is far from linear: there the expansion tells another evidence.
        self.usable = link.name != "square" and all(each.usable for each in around.values())
        self._around = list(around.values())
        self._ones, self._bent, self._by_factor, self._offset, z, b = (
            np.concatenate([getattr(own, name) for own in self._around])
            for name in ("ones", "bent", "by_factor", "offset", "z", "b")
        )
        self._known: tuple[tuple[float, ...], Sites] | None = None
        self._moves = any(each.moves for each in self._around)
        self._at = np.concatenate([each.start for each in self._around])
        self._cuts = np.cumsum([each.start.size for each in self._around])[:-1]
        sizes = np.concatenate([np.diff(bags.offsets) for _, bags in periods.values()])
        area = _ground([bags for _, bags in periods.values()], n_area)
        self._bags = AverageCovariance(self._kernel, z, b, np.concatenate([[0], np.cumsum(sizes)]))
        self._areas, self._row = _by_area(self._kernel, z, b, sizes, area)
        whole = self._areas.ones[self._row]
        self._scale = self._ones / np.where(whole > 0.0, whole, 1.0)
        self._times = model.split_times(state.fixed)
        number = np.repeat(list(periods), [bags.n_bag for _, bags in periods.values()])
        times = state.fixed["times"][number]
        lags, self._lag = np.unique(np.abs(times[:, None] - times), return_inverse=True)
        self._lags, self._lag = lags, self._lag.reshape(times.size, times.size)
        self._of_area = [
            getattr(term.kernel, "spatial", False) or isinstance(term.kernel, Areas)
            for term in self._bags.terms
        ]
        self._level = level_site(link, float(state.params["mean"][0]), state.fixed)
        self.large_sd, self.side = link.large_sd, side_of(state.fixed) or 1.0
        names = model.phi_names[1:]  # but the mean
        self._inside: np.ndarray | float = 0.0
        self._inside = self._covariance(np.concatenate([state.params[name] for name in names]))[1]
        axes = state.fixed["coord_mean"].size if "coord_scale" in state.fixed else 0
        placed = axes > 0 and self._areas.ones.size > 1
        self._neighbour = nearest(self._areas.means[:, -axes:]) if placed else None

    def _covariance(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances of the aggregates, and the variance of ``f`` inside each."""
        theta, time = np.split(x[: self._kernel.n_theta + self._n_time], [self._kernel.n_theta])
        alike = [
            np.asarray(kernel.covariance(own, self._lags))[self._lag]
            for kernel, own in zip(self._text.times, self._text.split(time), strict=True)
        ]
        n = self._ones.size
        total, inside = np.zeros((n, n)), np.zeros(n)
        for number, of_area in enumerate(self._of_area):
            if of_area:  # alike in all periods
                k, lacking = self._areas.part(number, theta)
                k = k[np.ix_(self._row, self._row)] * self._scale * self._scale[:, None]
                lacking = None if lacking is None else self._scale * lacking[self._row]
            else:
                k, lacking = self._bags.part(number, theta)
            total += k if self._times[number] == STILL else k * alike[self._times[number]]
            if lacking is not None:
                inside += lacking
        return total, inside

    def at(self, x: np.ndarray) -> Evidence | None:
        """Evaluate.

        Parameters
        ----------
        x : (n_theta + n_time + n_own,) float64
            Parameters of the kernel, of the times, the likelihood's own; logarithms.

        Returns
        -------
        Evidence
            Or None where the covariances are not positive definite.
        """
        n_theta, n_kernel = self._kernel.n_theta, self._kernel.n_theta + self._n_time
        own = dict(zip(self._likelihood.parameters, x[n_kernel:].tolist(), strict=True))
        cov, inside = self._covariance(x)
        _, tau2 = self._likelihood.without_factor(own)
        off = self._offset + self._bent * (inside - self._inside) - 0.5 * self._by_factor * tau2
        found = self._regress(cov, off, self._by_factor**2 * tau2, own)
        if found is None:
            return None
        value = found.value
        if self._model.priors == "weak":
            side, step = side_of(self._fixed), float(self._fixed["step"][0])
            value += log_prior(self._kernel, x[:n_theta], self._model.link_name, side)[0]
            arrays = {name: np.array([each]) for name, each in own.items()}
            value += log_prior_noise(self._likelihood, arrays, self._fixed)[0]
            times = self._text.split(x[n_theta:n_kernel])
            for kernel, each in zip(self._text.times, times, strict=True):
                value += float(kernel.log_prior(each, step))
        return Evidence(value, found.mean, found.precision) if np.isfinite(value) else None

    def _regress(
        self, cov: np.ndarray, off: np.ndarray, noise: np.ndarray, own: dict[str, float]
    ) -> Regression | None:
        """Return the regression on the sites; where they move, those at the mode of ``v``."""
        v = self._at
        for _ in range(MOST_STEPS if self._moves else 1):
            place, variance, constant = self._sites(own, v)
            total = float(constant.sum())
            found = regress(cov, place - off, variance + noise, self._ones, self._level, total)
            if found is None or not self._moves:
                return found
            step = place - variance * found.pull() - v
            if np.abs(step).max() < CLOSE * self.large_sd:
                self._at = v
                return found
            v = v + np.clip(step, -LONGEST * self.large_sd, LONGEST * self.large_sd)
        return None

    def _sites(self, own: dict[str, float], v: np.ndarray) -> Sites:
        """Return the sites of all bags by the law's own parameters; those that stay are kept."""
        base = {name: own[name] for name in self._around[0].base.parameters}
        key = tuple(base.values())
        if self._moves or self._known is None or self._known[0] != key:
            each = zip(self._around, np.split(v, self._cuts), strict=True)
            place, variance, constant = zip(*(a.sites(base, at) for a, at in each), strict=True)
            whole = np.concatenate(place), np.concatenate(variance), np.concatenate(constant)
            self._known = key, whole
        return self._known[1]

    def noise_share(self, x: np.ndarray, sd: float) -> float:
        """Return the share of the areas' own effects in the variance between neighbouring areas."""
        del sd
        own, field, theta = 0.0, 0.0, x[: self._kernel.n_theta]
        here = np.arange(self._areas.ones.size)
        for number, term in enumerate(self._areas.terms):
            if isinstance(term.kernel, Areas):
                own += float(np.exp(theta[term.places[0]]))
            elif self._of_area[number] and self._neighbour is not None:
                k = self._areas.term(number, theta)
                field += float(np.mean(np.diag(k) - k[here, self._neighbour]))
        return own / max(own + max(field, 0.0), LEAST)


def _ground(periods: Sequence[BagBlock], n_area: int) -> np.ndarray:
    """Return the number of the area of each bag: (n_bag,); a union has one above all areas."""
    unions: dict[tuple[int, ...], int] = {}
    found = []
    for bags in periods:
        number = bags.bag % n_area
        if bags.area is not None:
            own = np.add.reduceat(
                bags.area != np.repeat(number, np.diff(bags.offsets)), bags.offsets[:-1]
            )
            for k in np.flatnonzero(own):
                inside = np.unique(bags.area[bags.offsets[k] : bags.offsets[k + 1]]).tolist()
                number[k] = n_area + unions.setdefault(tuple(inside), len(unions))
        found.append(number)
    return np.concatenate(found)


def _by_area(
    kernel: Kernel, z: np.ndarray, b: np.ndarray, sizes: np.ndarray, area: np.ndarray
) -> tuple[AverageCovariance, np.ndarray]:
    """Return covariances of averages over areas, of the pixels of all their periods.

    Parameters
    ----------
    kernel : Kernel
    z, b : (n_pix, n_dim), (n_pix,) float64
    sizes, area : (n_bag,) int64
        Pixels of each bag, and the number of its area.

    Returns
    -------
    AverageCovariance
    row : (n_bag,) int64
        Row of each bag's area.
    """
    seen, row, count = np.unique(area, return_inverse=True, return_counts=True)
    own = np.repeat(row, sizes)
    order = np.argsort(own, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=seen.size))])
    return AverageCovariance(kernel, z[order], (b / count[own])[order], offsets), row


def find_series_places(model: TemporalModel, state: State) -> Places | None:
    """Find the areas' own effect and the field of space that stays; None without both.

    Parameters
    ----------
    model : TemporalModel
    state : State
    """
    times, noise, field = model.split_times(state.fixed), None, None
    for number, term in enumerate(split_terms(whole_kernel(model._kernel(state.fixed)))):
        if isinstance(term.kernel, Areas):
            noise = int(term.places[0])
        elif getattr(term.kernel, "spatial", False) and times[number] == STILL and field is None:
            field = term.places if term.kernel.n_theta == 2 else None
    if noise is None or field is None:
        return None
    return Places(1 + noise, 1 + int(field[0]), 1 + int(field[1]), 0.5)
