"""Mixtures over hyperparameters against brute-force roots, Monte Carlo and a single part."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import ndtr

from models.core.errors import ParameterError
from models.likelihoods.links import LINKS, find_link
from models.likelihoods.mixture import MixturePrediction, _folded_quantile, _normal_quantile
from models.likelihoods.prediction import Prediction

N_PIX, SCALE = 24, 0.2
LEVELS = (1e-6, 0.025, 0.3, 0.5, 0.8, 0.975, 1 - 1e-9)


def _mixture(link, weights=(0.5, 0.3, 0.15, 0.05), seed=0, spread=1.0):
    """Parts whose means are apart by several deviations in some pixels, and touch in others."""
    rng = np.random.default_rng(seed)
    parts = tuple(
        Prediction(
            link,
            rng.normal(0.3, spread, N_PIX),
            np.exp(rng.normal(-2.0, 2.0, N_PIX)),
            SCALE,
        )
        for _ in weights
    )
    return MixturePrediction(parts, np.array(weights))


def _law(mixture, pixel):
    """Distribution function, and tail, of a pixel's ``f``; of its size under the square link."""
    m = np.array([part.m[pixel] for part in mixture.parts])
    sd = np.sqrt([part.s[pixel] for part in mixture.parts])
    folded = 1.0 if mixture.link == "square" else 0.0

    def below(t):
        return mixture.weights @ (ndtr((t - m) / sd) - folded * ndtr((-t - m) / sd))

    def above(t):
        return mixture.weights @ (ndtr((m - t) / sd) + folded * ndtr((-t - m) / sd))

    return below, above


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("q", LEVELS)
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.15, 0.05), (1 - 1e-9, 1e-9)])
def test_quantiles_are_brents_roots(link, q, weights):
    mixture = _mixture(link, weights)
    found = mixture.quantile(q)
    for pixel in range(N_PIX):
        below, above = _law(mixture, pixel)
        low = 0.0 if link == "square" else -200.0
        tail, level, sign = (below, q, 1) if q <= 0.5 else (above, 1 - q, -1)

        def off(t, tail=tail, level=level, sign=sign):
            return sign * (tail(t) - level)

        root = optimize.brentq(off, low, 200.0, xtol=1e-14, rtol=1e-15, maxiter=500)
        value, slope = (
            SCALE * float(of(np.array(root)))
            for of in (find_link(link).value, find_link(link).slope)
        )
        # Where hardly anything is between two parts, the probability's last bit moves the root.
        h = 1e-4
        density = (below(root + h) - below(root - h)) / (2 * h)
        moved = abs(slope) * 1e-15 * min(q, 1 - q) / max(density, 1e-30)
        assert found[pixel] == pytest.approx(value, rel=2e-11, abs=max(1e-13, moved))


@pytest.mark.parametrize("q", LEVELS)
@pytest.mark.parametrize("find", [_normal_quantile, _folded_quantile])
def test_arrays_of_a_device_have_the_same_roots(find, q):
    parts = _mixture("square" if find is _folded_quantile else "identity").parts
    w, (m, sd) = np.array([0.5, 0.3, 0.15, 0.05]), ([p.m for p in parts], [p.s**0.5 for p in parts])
    same = MixturePrediction(parts, w).quantile(q)
    root = find(w.tolist(), m, sd, q)
    found = SCALE * find_link(parts[0].link).value(root)
    np.testing.assert_allclose(found, same, rtol=2e-11, atol=1e-13)


@pytest.mark.parametrize("link", LINKS)
def test_mean_and_sd_are_integrals_over_the_mixtures_density(link):
    mixture, psi = _mixture(link, seed=3, spread=0.5), find_link(link)
    for pixel in range(0, N_PIX, 4):
        moments = np.zeros(2)
        for part, w in zip(mixture.parts, mixture.weights, strict=True):
            m, sd = part.m[pixel], np.sqrt(part.s[pixel])
            for power in (1, 2):
                moments[power - 1] += w * _expectation(psi, m, sd, power)
        assert mixture.mean[pixel] == pytest.approx(SCALE * moments[0], rel=1e-8)
        sd = SCALE * np.sqrt(moments[1] - moments[0] ** 2)
        assert mixture.sd[pixel] == pytest.approx(sd, rel=1e-6)


def _expectation(psi, m, sd, power):
    def integrand(z):
        return float(psi.value(np.array(m + sd * z))) ** power * np.exp(-0.5 * z * z)

    centre = power * sd if psi.name == "exp" else 0.0  # where the integrand is
    whole = integrate.quad(integrand, centre - 14, centre + 14, epsabs=0, limit=400)[0]
    return whole / np.sqrt(2 * np.pi)


@pytest.mark.parametrize("link", LINKS)
def test_draws_follow_every_answer(link):
    mixture = _mixture(link, seed=5, spread=0.4)
    drawn = mixture.sample(40_000, np.random.default_rng(1))
    f = np.log(drawn / SCALE) if link == "exp" else drawn / SCALE
    if link in ("exp", "identity"):
        error = np.sqrt(mixture.s / drawn.shape[0])
        assert (np.abs(f.mean(axis=0) - mixture.m) < 5 * error).all()
        np.testing.assert_allclose(f.var(axis=0), mixture.s, rtol=0.15)
    for q in (0.05, 0.5, 0.9):
        share = (drawn <= mixture.quantile(q)).mean(axis=0)
        assert np.abs(share - q).max() < 5 * np.sqrt(q * (1 - q) / drawn.shape[0])
    edge = mixture.quantile(0.7)
    np.testing.assert_allclose(mixture.exceed(edge), 0.3, atol=1e-9)
    assert np.abs((drawn > edge).mean(axis=0) - 0.3).max() < 0.012


@pytest.mark.parametrize("link", LINKS)
def test_equal_parts_are_one_prediction(link):
    part = _mixture(link, (1.0,)).parts[0]
    for weights in ([1.0], [0.25] * 4, [0.0, 1.0]):
        same = MixturePrediction((part,) * len(weights), np.array(weights))
        for answer in ("mean", "sd", "m", "s"):
            np.testing.assert_allclose(getattr(same, answer), getattr(part, answer), rtol=1e-13)
        for q in LEVELS[:-1]:  # the last one lacks digits where it is 1 - q
            np.testing.assert_allclose(same.quantile(q), part.quantile(q), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(same.exceed(0.1), part.exceed(0.1), rtol=1e-14)
    alone = MixturePrediction((part,), np.ones(1))
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    np.testing.assert_array_equal(alone.sample(7, rng), part.sample(7, other))
    np.testing.assert_array_equal(alone.quantile(0.3), part.quantile(0.3))


@pytest.mark.parametrize("link", LINKS)
def test_parts_without_variance_are_steps(link):
    places = [0.2, 0.5, 1.5]
    parts = tuple(Prediction(link, np.array([v]), np.zeros(1), 2.0) for v in places)
    mixture = MixturePrediction(parts, np.array([0.2, 0.5, 0.3]))
    values = [2.0 * float(find_link(link).value(np.array(v))) for v in places]
    for q, at in ((0.1, 0), (0.19, 0), (0.21, 1), (0.69, 1), (0.71, 2), (0.99, 2)):
        assert mixture.quantile(q)[0] == pytest.approx(values[at], rel=1e-10)
    assert mixture.exceed(0.5 * (values[0] + values[1]))[0] == pytest.approx(0.8)
    assert mixture.mean[0] == pytest.approx(np.array([0.2, 0.5, 0.3]) @ values)


@pytest.mark.parametrize("link", ["identity", "square"])
def test_a_spike_beside_a_wide_part_does_not_stop_newton(link):
    # At the spike the slope is steep and steps are tiny, far from the root or near.
    for sd in (1e-3, 1e-7, 1e-12, 1e-15):
        parts = (
            Prediction(link, np.array([1.0]), np.array([1.0]), 1.0),
            Prediction(link, np.array([1.0]), np.array([sd**2]), 1.0),
        )
        mixture = MixturePrediction(parts, np.array([0.5, 0.5]))
        for q in (0.05, 0.2, 0.5, 0.8, 0.95):
            t = mixture.quantile(q)[0]
            step = 1e-6 if abs(t - 1.0) > 1e-6 else 1e-4  # inside the spike anything may be
            assert mixture.exceed(t - step)[0] >= 1 - q - 1e-12
            assert mixture.exceed(t + step)[0] <= 1 - q + 1e-12


def test_no_pixels_have_no_quantiles():
    part = Prediction("exp", np.empty(0), np.empty(0), 1.0)
    assert MixturePrediction((part, part), np.array([0.5, 0.5])).quantile(0.5).shape == (0,)


def test_wrong_parts_and_weights_are_refused():
    part = Prediction("exp", np.zeros(1), np.ones(1), 1.0)
    with pytest.raises(ParameterError, match="parts"):
        MixturePrediction((), np.empty(0))
    with pytest.raises(ParameterError, match="2 links"):
        MixturePrediction((part, Prediction("square", part.m, part.s, 1.0)), np.array([0.5, 0.5]))
    for weights in ([0.5, 0.4], [1.5, -0.5], [1.0]):
        with pytest.raises(ParameterError, match="weights"):
            MixturePrediction((part, part), np.array(weights))


def test_counts_are_as_if_each_were_there_so_many_times():
    one, other = _mixture("exp", (0.7, 0.3)), _mixture("exp", (1.0,), seed=3).parts[0]
    short = MixturePrediction.of([one, other], [5, 1])
    long = MixturePrediction.of([one] * 5 + [other])
    np.testing.assert_allclose(short.mean, long.mean)
    np.testing.assert_allclose(short.quantile(0.95), long.quantile(0.95), rtol=1e-6)
    np.testing.assert_allclose(short.weights, [7 / 12, 3 / 12, 2 / 12])
