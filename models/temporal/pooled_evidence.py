r"""The evidence of the hyperparameters from what the areas are on average over the periods.

What differs inside an area, months do not tell, however many there are: its kernel is learnt from
how areas differ. So the posterior of the hyperparameters of what stays is as wide, and as skewed,
as that of one period with all counts. It is explored on the areas' averages over time. Around a
fit, the aggregate of an area and a period is linear in ``f`` (:mod:`models.aggregate.
area_evidence`), with a Gaussian site. Their average over the periods, weighted by the precision of
the sites,

    u_a = sum_t w_at v_at,     w_at = pi_at / sum_t pi_at,

is what the sites tell of a constant, and has the prior covariance

    cov(u_a, u_a') = sum_j c_j cov(sum_t w_at h_j, sum_t w_a't h_j),
    c_j = sum_tt' w_t k_j(t - t') w_t',

exactly for what stays, for what moves where areas have like weights. So its evidence is that of one
period, whose terms that move have variances that are smaller by ``c_j``: Gaussian regression
between areas. What the periods tell besides, by their differences, is the curvature of the bound
that the averages do not have: a quadratic in the hyperparameters around the optimum.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.aggregate.area_evidence import Evidence, Linearised, level_site, nearest, regress
from models.aggregate.hyperparameter_chain import Places
from models.core.block import BagBlock
from models.core.protocol import Arrays, State
from models.gp.area_kernel import Areas
from models.gp.average_covariance import AverageCovariance
from models.gp.kernel_model import exactly
from models.gp.kernel_terms import split_terms, whole_kernel
from models.gp.priors import log_prior, side_of
from models.temporal.temporal_model import TemporalModel
from models.temporal.time_text import STILL

DIFFERENCE = 0.1  # of a logarithm: step of the averages' curvature
LEAST_SHARE = 1e-6
LASTING = 0.5


class PooledEvidence:
    """``log Z`` of the areas' averages over time around a fit, and what differences tell besides.

    Parameters
    ----------
    model : TemporalModel
    state : State
        The fit.
    periods : mapping of int to (params, BagBlock)
        Of each period with responses, by number: what its blocks are evaluated with, and its bags,
        of few pixels each.
    curvature : (n_phi, n_phi) float64
        Of minus the bound at the fit, by :attr:`Profile.names`.
    """

    def __init__(
        self,
        model: TemporalModel,
        state: State,
        periods: Mapping[int, tuple[Arrays, BagBlock]],
        curvature: np.ndarray,
    ) -> None:
        self._model, self._fixed = model, state.fixed
        self._text = model.text(state.fixed)
        self._kernel = whole_kernel(model._kernel(state.fixed))
        self._n_time = state.params["time"].size
        n_area, likelihood = int(state.fixed["n_area"][0]), model.resolved_likelihood
        found = {}
        for t, (params, bags) in periods.items():
            around = Linearised(model, state.fixed, exactly(params), bags)
            _, tau2 = likelihood.without_factor(
                {k: float(params[k][0]) for k in likelihood.parameters}
            )
            base = {k: float(params[k][0]) for k in around.base.parameters}
            place, variance, _ = around.sites(base, around.start)
            variance = variance + around.by_factor**2 * tau2
            left = place - around.offset + 0.5 * around.by_factor * tau2
            found[t] = around, bags, left, 1.0 / variance
        self.usable = all(each[0].usable for each in found.values())
        precision = np.zeros((int(state.fixed["times"].size), n_area))
        for t, (_, bags, _, own) in found.items():
            precision[t, bags.bag % n_area] = own
        total = precision.sum(axis=0)
        seen = np.flatnonzero(total > 0.0)
        share = precision[:, seen] / total[seen]
        self._share, self._noise = share.mean(axis=1), 1.0 / total[seen]
        place_of = np.full(n_area, -1)
        place_of[seen] = np.arange(seen.size)
        sums = np.zeros((3, seen.size))
        pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        centre = None
        for t, (around, bags, left, _) in found.items():
            at = place_of[bags.bag % n_area]
            own = share[t, at]
            sums[:, at] += own * np.stack([left, around.ones, around.bent])
            pixel = np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets))
            pieces.append((at[pixel], around.z, own[pixel] * around.b))
            if bags.coords is not None:
                centre = np.zeros((bags.coords.shape[1], seen.size)) if centre is None else centre
                centre[:, at] += own * around.centres(around.z.shape[1] - bags.coords.shape[1])
        self._left, self._ones, self._bent = sums
        area, z, b = (np.concatenate(each) for each in zip(*pieces, strict=True))
        order = np.argsort(area, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(area, minlength=seen.size))])
        self._cov = AverageCovariance(self._kernel, z[order], b[order], offsets)
        self._neighbour = nearest(centre.T) if centre is not None and seen.size > 1 else None
        self._times = model.split_times(state.fixed)
        times = state.fixed["times"]
        lags, which = np.unique(np.abs(times[:, None] - times), return_inverse=True)
        both = np.outer(self._share, self._share)
        self._lags = lags, np.bincount(which.ravel(), both.ravel())
        link = model.resolved_link
        self._level = level_site(link, float(state.params["mean"][0]), state.fixed)
        self.large_sd, self.side = link.large_sd, side_of(state.fixed) or 1.0
        names = ("theta", "time", *likelihood.parameters)
        self._start = np.concatenate([state.params[name] for name in names])
        self._inside: np.ndarray | float = 0.0
        self._inside = self._average(self._start)[1]
        self._besides(curvature)

    # -- the averages ----------------------------------------------------------------------------

    def _shares(self, time: np.ndarray) -> np.ndarray:
        """Return the share of the variance of each split term that an average over time keeps."""
        kept, (lags, weight) = np.ones(self._times.size), self._lags
        for number, (kernel, own) in enumerate(
            zip(self._text.times, self._text.split(time), strict=True)
        ):
            share = float(weight @ kernel.covariance(own, lags))
            kept[self._times == number] = max(share, LEAST_SHARE)
        return kept

    def _average(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances of the averages, and the variance of ``f`` inside areas."""
        n = self._kernel.n_theta
        return self._cov(x[:n], self._shares(x[n : n + self._n_time]))

    def _pooled(self, x: np.ndarray) -> Evidence | None:
        """Return the evidence of the averages and the priors of the kernel's parameters."""
        cov, inside = self._average(x)
        left = self._left - self._bent * (inside - self._inside)
        found = regress(cov, left, self._noise, self._ones, self._level)
        if found is None:
            return None
        value, theta = found.value, x[: self._kernel.n_theta]
        if self._model.priors == "weak":
            side = side_of(self._fixed)
            value += log_prior(self._kernel, theta, self._model.link_name, side)[0]
        return Evidence(value, found.mean, found.precision) if np.isfinite(value) else None

    # -- what differences between the periods tell besides -----------------------------------------

    def _besides(self, curvature: np.ndarray) -> None:
        """Set the quadratic of what the averages do not have."""
        n = self._start.size
        self._slope, self._bend = np.zeros(n), np.zeros((n, n))
        cross = curvature[1:, 0]
        whole = curvature[1:, 1:] - np.outer(cross, cross) / max(curvature[0, 0], LEAST_SHARE)
        slope, bend = self._differences(n)
        told = self._told_by_averages()
        whole[told] = whole[:, told] = bend[told] = bend[:, told] = slope[told] = 0.0
        value, vector = np.linalg.eigh(0.5 * ((whole - bend) + (whole - bend).T))
        self._bend = (vector * np.maximum(value, 0.0)) @ vector.T
        # The bound has its optimum here. Of what the averages tell by their slope the differences
        # take back as much as they have a say: all of it where they know alone, none where they
        # know nothing.
        size = np.linalg.eigh(bend)
        known = (size[1] * np.abs(size[0])) @ size[1].T
        self._slope = -self._bend @ np.linalg.lstsq(self._bend + known, slope, rcond=1e-8)[0]

    def _told_by_averages(self) -> np.ndarray:
        """Return the parameters of which differences between periods know nothing, (n,) bool."""
        found = np.zeros(self._start.size, dtype=bool)
        n_feat = int(self._fixed["n_feat"][0]) - self._model.moving_covariates
        n = self._kernel.n_theta
        kept = self._shares(self._start[n : n + self._n_time])
        for number, term in enumerate(self._cov.terms):
            still = self._times[number] == STILL
            of_still = term.columns[1] <= n_feat or getattr(term.kernel, "spatial", False)
            area = isinstance(term.kernel, Areas) and kept[number] > LASTING
            found[term.places] |= (still and of_still) or area
        return found

    def _differences(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and curvature of minus the averages' evidence at the fit."""

        def at(step: np.ndarray) -> float:
            found = self._pooled(self._start + step)
            return np.nan if found is None else found.value

        unit = DIFFERENCE * np.eye(n)
        here = at(np.zeros(n))
        up, down = (np.array([at(sign * own) for own in unit]) for sign in (1.0, -1.0))
        slope = (up - down) / (2.0 * DIFFERENCE)
        bend = np.diag(2.0 * here - up - down)
        for k in range(n):
            for j in range(k):
                both = at(unit[k] + unit[j]) - up[k] - up[j] + here
                apart = at(-unit[k] - unit[j]) - down[k] - down[j] + here
                bend[k, j] = bend[j, k] = -0.5 * (both + apart)
        return np.nan_to_num(slope), np.nan_to_num(bend / DIFFERENCE**2)

    # -- what the chain asks -----------------------------------------------------------------------

    def at(self, x: np.ndarray) -> Evidence | None:
        """Evaluate.

        Parameters
        ----------
        x : (n_theta + n_time + n_own,) float64
            Parameters of the kernel, of the times, the likelihood's own; logarithms.
        """
        found = self._pooled(x)
        if found is None:
            return None
        step = x - self._start
        value = found.value + float(self._slope @ step - 0.5 * step @ self._bend @ step)
        return Evidence(value, found.mean, found.precision)

    def noise_share(self, x: np.ndarray, sd: float) -> float:
        """Return the areas' own share in the variance of averages between neighbouring areas."""
        del sd
        kept = self._shares(x[self._kernel.n_theta : self._kernel.n_theta + self._n_time])
        own, field = 0.0, 0.0
        here = np.arange(self._ones.size)
        for number, term in enumerate(self._cov.terms):
            k = kept[number] * self._cov.term(number, x[: self._kernel.n_theta])
            if isinstance(term.kernel, Areas):
                own += float(np.mean(np.diag(k)))
            elif getattr(term.kernel, "spatial", False) and self._neighbour is not None:
                field += float(np.mean(np.diag(k) - k[here, self._neighbour]))
        return own / max(own + max(field, 0.0), LEAST_SHARE)


def find_pooled_places(model: TemporalModel, state: State) -> Places | None:
    """Find the effect of areas and the field of space that stays; None without both.

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
