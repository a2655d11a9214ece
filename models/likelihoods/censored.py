r"""Counts of which an interval is known: ``<5``, suppressed to protect the patients.

``log P(lo <= Y <= hi) = log sum_k p(k | eta)`` over the few counts ``k`` of the interval, for any
likelihood of counts. With the shares ``w_k = p(k | eta) / sum_j p(j | eta)`` and ``l = log p``, the
derivatives are those of the counts, averaged:

    d1 = E_w l',    d2 = E_w [l'' + l'^2] - d1^2,
    d3 = E_w [l''' + 3 l' l'' + l'^3] - 3 d1 (d2 + d1^2) + 2 d1^3.

An effect of each area is integrated outside the sum, where the integrand stays log-concave.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.core.block import BagBlock
from models.core.errors import BagsError
from models.core.protocol import Summary, override
from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.constant import MixedRate, OneRate
from models.likelihoods.intervals import counts_within, mixed
from models.likelihoods.likelihood import Likelihood, Params, Terms
from models.likelihoods.sources import SeveralSources

STEP = 1e-4  # of a parameter's logarithm, for its derivative of d2


class Censored(Likelihood):
    """A likelihood of counts, some of which are known to be in an interval alone.

    :meth:`terms` takes the middle of the interval for ``y``, and half of its width as the last row
    of ``bag_data``; 0 there is a known count.

    Parameters
    ----------
    base : Likelihood
        Of counts, without an effect of each area.
    """

    name = "censored"

    def __init__(self, base: Likelihood) -> None:
        self.base = base
        self.describe_as(base)
        self.parameters = base.parameters

    def __str__(self) -> str:
        """Return the base's name."""
        return str(self.base)

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        return self.base.starting_scale(sample)

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        return self.base.draw(eta, params, without_margin(bag_data), rng)

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        law = self.base.constant(y, exposure, without_margin(bag_data))
        if not isinstance(law, MixedRate):
            return super().constant(y, exposure, bag_data)
        return CensoredRate(type(law).fit(y, exposure, bag_data[-1]))

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp = namespace(eta)
        own, margin = without_margin(bag_data), bag_data[-1]
        known = self.base.terms(y, eta, params, own, order)
        some = xp.broadcast_to(margin, eta.shape[-1:]) > 0
        if not bool(some.any()):
            return known
        found = self._interval(
            y[some], eta[..., some], _of_bags(params, some), own[..., some], margin[some], order
        )

        def put(all_bags: Any, those: Any) -> Any:
            if all_bags is None:
                return None
            result = xp.broadcast_to(all_bags, eta.shape).copy()
            result[..., some] = those
            return result

        return Terms(
            put(known.value, found.value),
            put(known.d1, found.d1),
            put(known.d2, found.d2),
            put(known.d3, found.d3),
            {name: put(value, found.by[name]) for name, value in known.by.items()},
            {name: put(value, found.by_d2[name]) for name, value in known.by_d2.items()},
        )

    def _interval(
        self, y: Any, eta: Any, params: Params, own: Any, margin: Any, order: int
    ) -> Terms:
        """Return the terms of bags that all have an interval."""
        xp = namespace(eta)
        each, inside = [], []
        for count, is_inside in counts_within(y, margin):
            each.append(self.base.terms(count, eta, params, own, order))
            inside.append(is_inside)
        value, share = mixed(xp.stack([at.value for at in each]), xp.stack(inside))

        def mean(parts: list[Any]) -> Any:
            return sum(w * part for w, part in zip(share, parts, strict=True))

        d1 = mean([at.d1 for at in each])
        by = {name: mean([at.by[name] for at in each]) for name in each[0].by}
        if order == 1:
            return Terms(value, d1, by=by)
        second = mean([at.d2 + at.d1**2 for at in each])
        third = mean([at.d3 + 3.0 * at.d1 * at.d2 + at.d1**3 for at in each])
        by_d2 = {}
        for name in by:
            ends = [
                self._curve(y, eta, {**params, name: params[name] + h}, own, margin)
                for h in (-STEP, STEP)
            ]
            by_d2[name] = (ends[1] - ends[0]) / (2.0 * STEP)
        d3 = third - 3.0 * d1 * second + 2.0 * d1**3
        return Terms(value, d1, second - d1**2, d3, by, by_d2)

    def _curve(self, y: Any, eta: Any, params: Params, own: Any, margin: Any) -> Any:
        """Return ``d2``, of which the derivative by a parameter is taken in steps."""
        xp = namespace(eta)
        within = list(counts_within(y, margin))
        each = [self.base.terms(count, eta, params, own, 3) for count, _ in within]
        _, share = mixed(
            xp.stack([at.value for at in each]), xp.stack([inside for _, inside in within])
        )
        parts = list(zip(share, each, strict=True))
        first = sum(w * at.d1 for w, at in parts)
        return sum(w * (at.d2 + at.d1**2) for w, at in parts) - first**2


class CensoredRate(OneRate):
    """One rate for all bags, by which an interval has the probability of its counts.

    Parameters
    ----------
    law : OneRate
        Of the counts.
    """

    def __init__(self, law: OneRate) -> None:
        self.law, self.rate = law, law.rate
        self.about = law.about  # type: ignore[misc]

    @override
    def mean(self, exposure: np.ndarray) -> np.ndarray:
        return self.law.mean(exposure)

    @override
    def log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        within = list(counts_within(y, noise[-1]))
        each = np.stack(
            [self.law.log_density(k, exposure, without_margin(noise)) for k, _ in within]
        )
        return np.asarray(mixed(each, np.stack([inside for _, inside in within]))[0])

    @override
    def _log_density(self, y: np.ndarray, exposure: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self.log_density(y, exposure, noise)

    @override
    def _draw(
        self, exposure: np.ndarray, noise: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.law._draw(exposure, without_margin(noise), n_draws, rng)


def of_block(likelihood: Likelihood, block: BagBlock) -> tuple[Likelihood, Any]:
    """Return the likelihood of a block's responses and its data of them.

    Raises
    ------
    BagsError
        If there are intervals, but responses are no counts.
    """
    own = likelihood.data_of(block)
    if block.margin is None:
        return likelihood, own
    return censored(likelihood), with_margin(own, block.margin)


def with_margin(bag_data: Any, margin: Any) -> Any:
    """Return a likelihood's data of bags with their margins as the last row: (..., n_bag)."""
    own = bag_data[None] if bag_data.ndim == 1 else bag_data
    return namespace(margin).concatenate([own, margin[None]])


def without_margin(bag_data: Any) -> Any:
    """Return what :func:`with_margin` was given."""
    return bag_data[0] if bag_data.shape[0] == 2 else bag_data[:-1]


def censored(likelihood: Likelihood) -> Likelihood:
    """Return the likelihood where some counts are known as intervals."""
    if not likelihood.counts:
        msg = f"responses of the {likelihood} likelihood are no counts; give no margin of them"
        raise BagsError(msg)
    if isinstance(likelihood, SeveralSources):
        return likelihood.with_areas(censored(likelihood.areas))
    if isinstance(likelihood, AreaEffect):
        return AreaEffect(Censored(likelihood.base))
    return Censored(likelihood)


def _of_bags(params: Params, some: Any) -> dict[str, Any]:
    """Return the parameters of some bags: of all bags, of each draw, or of each draw and bag."""
    return {
        name: value
        if np.ndim(value) < 2 or np.shape(value)[-1] != some.shape[0]
        else np.asarray(value)[..., some]
        for name, value in params.items()
    }
