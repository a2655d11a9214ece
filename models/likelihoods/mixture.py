r"""Predictions under several draws of the hyperparameters: mixtures of their distributions.

Given hyperparameters a pixel's ``f`` is normal; over draws ``k`` of them with weights ``w_k`` it is
``sum_k w_k N(m_k, s_k)``, and the rate its image under the link. Means and exceedance
probabilities add up with the weights, variances by the law of total variance, and quantiles are the
roots of a sum of normal distribution functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from models.backend.arrays import namespace, ndtr, ndtri, to_host
from models.core.errors import ParameterError
from models.likelihoods.links import SQRT_2PI, find_link
from models.likelihoods.prediction import Prediction
from models.likelihoods.probability import check_probability

MOST_STEPS = 200  # bisection alone needs about 50
TOLERANCE = 1e-13  # of a root, as a share of the size of ``f``
NEAR = 1e-10  # of a root, in probability


@dataclass(frozen=True)
class MixturePrediction:
    """Distribution of each pixel's rate over several draws of the hyperparameters.

    Attributes
    ----------
    parts : tuple of Prediction
        One a draw, of the same pixels, link and scale.
    weights : (n_part,) float64
        Their probabilities, which add up to 1.

    Raises
    ------
    ParameterError
        If there is no part, the parts differ in link or scale, or the weights are no probabilities.
    """

    parts: tuple[Prediction, ...]
    weights: np.ndarray

    def __post_init__(self) -> None:
        kinds = {(part.link, part.scale) for part in self.parts}
        if len(kinds) != 1:
            msg = f"parts: {len(self.parts)} of {len(kinds)} links and scales; give parts of one"
            raise ParameterError(msg)
        w = np.asarray(self.weights)
        right = w.shape == (len(self.parts),) and (w >= 0).all() and abs(w.sum() - 1) < 1e-9
        if not right:
            msg = "weights: they are not one probability a part, of sum 1; correct them"
            raise ParameterError(msg)

    @classmethod
    def of(
        cls, each: Sequence[Prediction | MixturePrediction], counts: Sequence[int] = ()
    ) -> MixturePrediction:
        """Return the mixture of some distributions, each as probable as another.

        With ``counts`` they are as probable as if each were there so many times.
        """
        parts, weights = list[Prediction](), list[np.ndarray]()
        times = counts or [1] * len(each)
        for own, n in zip(each, times, strict=True):
            share = n / sum(times)
            if isinstance(own, MixturePrediction):
                parts += own.parts
                weights.append(np.asarray(own.weights) * share)
            else:
                parts.append(own)
                weights.append(np.full(1, share))
        return cls(tuple(parts), np.concatenate(weights))

    @property
    def link(self) -> str:
        """The link, see :data:`models.likelihoods.links.LINKS`."""
        return self.parts[0].link

    @property
    def scale(self) -> float:
        """Rate per unit of weight that ``Psi(f) = 1`` stands for."""
        return self.parts[0].scale

    @cached_property
    def m(self) -> np.ndarray:
        """Mean of ``f``: (n_pix,)."""
        return self._mean_of(lambda part: part.m)

    @cached_property
    def s(self) -> np.ndarray:
        """Variance of ``f``, by the law of total variance: (n_pix,)."""
        return self._mean_of(lambda part: part.s + (part.m - self.m) ** 2)

    @cached_property
    def mean(self) -> np.ndarray:
        """Mean rate, per unit of weight: (n_pix,)."""
        return self._mean_of(lambda part: part.mean)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of the rate, by the law of total variance: (n_pix,)."""
        sd: np.ndarray = np.sqrt(
            self._mean_of(lambda part: part.sd**2 + (part.mean - self.mean) ** 2)
        )
        return sd

    def exceed(self, c: float | np.ndarray) -> np.ndarray:
        """Probability that the rate is above ``c``, one number or one a pixel: (n_pix,)."""
        return self._mean_of(lambda part: part.exceed(c))

    def quantile(self, q: float) -> np.ndarray:
        """Quantile of the rate at probability ``q`` in (0, 1): (n_pix,).

        The root of the mixture's distribution function on the scale of ``f``, or of ``|f|`` under
        the square link. Memory: three numbers a pixel and a part.
        """
        check_probability(q)
        used = [part for part, w in zip(self.parts, self.weights, strict=True) if w > 0]
        if len(used) == 1:
            return used[0].quantile(q)
        xp = namespace(used[0].m)
        w, folded = self.weights[self.weights > 0], self.link == "square"
        w = w / w.sum()
        m = [part.m for part in used]
        sd = [xp.sqrt(part.s) for part in used]
        if xp is np:
            # The compiler takes a fifth of a second to import, which few commands need.
            from models.likelihoods.compiled_quantile import mixture_quantiles

            limits = MOST_STEPS, TOLERANCE, NEAR
            ends = float(ndtri(q)), float(ndtri(0.5 * (1 + q)))
            means, sds = (np.stack(each, axis=1).astype(np.float64, copy=False) for each in (m, sd))
            means = np.abs(means, out=means) if folded else means
            root = mixture_quantiles(w, means, sds, q, *ends, folded, *limits)
        else:
            root = (_folded_quantile if folded else _normal_quantile)(w.tolist(), m, sd, q)
        value: np.ndarray = self.scale * find_link(self.link).value(root)
        return value

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw each pixel by itself: (n, n_pix). Never add such draws up over pixels."""
        if len(self.parts) == 1:
            return self.parts[0].sample(n, rng)
        m, s = (np.stack([to_host(getattr(part, name)) for part in self.parts]) for name in "ms")
        pixel = np.arange(m.shape[1])
        chosen = rng.choice(len(self.parts), size=(n, m.shape[1]), p=self.weights)
        f = m[chosen, pixel] + np.sqrt(s[chosen, pixel]) * rng.standard_normal(chosen.shape)
        return np.asarray(self.scale * find_link(self.link).value(f))

    def _mean_of(self, of: Callable[[Prediction], Any]) -> np.ndarray:
        """Average over the parts; those of no weight are not looked at."""
        total: Any = 0.0
        for part, weight in zip(self.parts, self.weights.tolist(), strict=True):
            if weight > 0:
                total = total + weight * of(part)
        average: np.ndarray = total
        return average


def _normal_quantile(w: list[float], m: list[Any], sd: list[Any], q: float) -> Any:
    """Return the quantile of ``sum_k w_k N(m_k, sd_k^2)``: (n_pix,)."""
    z = float(ndtri(q))
    each = [a + b * z for a, b in zip(m, sd, strict=True)]

    def law(t: Any) -> tuple[Any, Any]:
        if q <= 0.5:
            below, slope = _sums(w, [t - a for a in m], sd, closed=True)
            return below - q, slope
        above, slope = _sums(w, [a - t for a in m], sd)
        return (1.0 - q) - above, slope

    mean, spread = _moments(w, m, sd)
    return _root(law, _fold("minimum", each), _fold("maximum", each), mean + z * spread, spread)


def _folded_quantile(w: list[float], m: list[Any], sd: list[Any], q: float) -> Any:
    """Return the quantile of ``|f|``, ``f ~ sum_k w_k N(m_k, sd_k^2)``: (n_pix,)."""
    xp = namespace(m[0])
    m = [xp.abs(a) for a in m]

    def law(t: Any) -> tuple[Any, Any]:
        far, by_far = _sums(w, [-t - a for a in m], sd)  # beyond 0, on the other side of m
        if q <= 0.5:
            near, slope = _sums(w, [t - a for a in m], sd, closed=True)
            return near - far - q, slope + by_far
        near, slope = _sums(w, [a - t for a in m], sd)
        return (1.0 - q) - near - far, slope + by_far

    # Of each part: |f| <= t has probability between P(f <= t) - P(f <= 0) and P(f <= t).
    low, high = float(ndtri(q)), float(ndtri(0.5 * (1 + q)))
    least = _fold("minimum", [xp.maximum(a + b * low, 0.0) for a, b in zip(m, sd, strict=True)])
    most = _fold("maximum", [a + b * high for a, b in zip(m, sd, strict=True)])
    mean, spread = _moments(w, m, sd)
    return _root(law, least, most, mean + low * spread, spread)


def _moments(w: list[float], m: list[Any], sd: list[Any]) -> tuple[Any, Any]:
    """Return mean and standard deviation of the mixture of normal distributions: (n_pix,) each."""
    mean: Any = sum(a * b for a, b in zip(w, m, strict=True))
    square: Any = sum(a * (c**2 + (b - mean) ** 2) for a, b, c in zip(w, m, sd, strict=True))
    return mean, namespace(mean).sqrt(square)


def _sums(
    w: list[float], off: list[Any], sd: list[Any], *, closed: bool = False
) -> tuple[Any, Any]:
    """Return ``sum_k w_k Phi(off_k / sd_k)`` and ``sum_k w_k phi(off_k / sd_k) / sd_k``.

    A part of no variance is a step, which has no slope; ``closed``: its value at 0 is 1.
    """
    value: Any = 0.0
    slope: Any = 0.0
    for weight, at, each in zip(w, off, sd, strict=True):
        xp = namespace(at)
        wide = each > 0
        safe = xp.where(wide, each, 1.0)
        z = at / safe
        step = (at >= 0) if closed else (at > 0)
        value = value + weight * xp.where(wide, ndtr(z), step * 1.0)
        slope = slope + weight / SQRT_2PI * xp.where(wide, xp.exp(-0.5 * z * z) / safe, 0.0)
    return value, slope


def _root(
    law: Callable[[Any], tuple[Any, Any]], low: Any, high: Any, start: Any, spread: Any
) -> Any:
    """Solve ``law(t) = 0`` by Newton inside a bracket, which is halved where Newton is slow.

    ``law`` rises; it returns its value, which is a difference of probabilities, and its slope.
    """
    xp = namespace(low)
    t = xp.clip(start, low, high)
    before = high - low
    smallest = TOLERANCE * (xp.maximum(xp.abs(low), xp.abs(high)) + spread)
    for _ in range(MOST_STEPS):
        value, slope = law(t)
        short = value < 0
        low, high = xp.where(short, t, low), xp.where(short, high, t)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            new = t - value / slope
        step, close = xp.abs(new - t), xp.abs(value) <= NEAR
        # Newton must come twice as near each time; a tiny step is an end only near the root, and
        # elsewhere a part of tiny variance, whose slope is steep.
        good = (new >= low) & (new <= high) & (step <= 0.5 * before) & (close | (step > smallest))
        new = xp.where(good, new, 0.5 * (low + high))
        before, t = xp.abs(new - t), new
        if not bool((((before > smallest) | ~close) & (high - low > smallest)).any()):
            break
    return t


def _fold(pair: str, each: list[Any]) -> Any:
    """Return the minimum, or maximum, over the parts: (n_pix,)."""
    result = each[0]
    for other in each[1:]:
        result = getattr(namespace(other), pair)(result, other)
    return result
