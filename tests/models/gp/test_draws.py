"""Random features of functions that are drawn in groups."""

from __future__ import annotations

import numpy as np
import pytest

from models.gp.area_kernel import AreaFeatures
from models.gp.draws import GROUP_FREQUENCIES, Surface, draw_functions, grouped
from models.gp.kernel_text import parse_kernel
from models.gp.random_features import Features
from models.gp.sparse_gp import factor_of

KERNEL = "ridge + smooth + ard + matern32(space) * matern12(space) + constant"


def _shares(kernel, theta, n_feature, rng, n_draws=8):
    """Features, what each function's weights on them are multiplied by, and its group."""
    features = kernel.features(theta, n_feature, rng)
    share = np.ones((features.n_feature, n_draws))
    group = grouped(features, share)
    return features, share, group


def test_the_covariance_of_every_group_is_the_kernel_on_average():
    kernel, rng = parse_kernel(KERNEL, 2, has_coords=True), np.random.default_rng(0)
    theta, z = kernel.start(1.0), rng.normal(size=(5, 4))
    by_group = []
    for _ in range(60):
        features, share, group = _shares(kernel, theta, 4 * GROUP_FREQUENCIES, rng)
        phi = features(z)
        each = [(phi * share[:, k] ** 2) @ phi.T for k in range(8)]
        assert group.tolist() == [0, 1] * 4
        for k in range(8):
            np.testing.assert_array_equal(each[k], each[group[k]])
        # All groups together use what is evaluated, evenly.
        np.testing.assert_allclose(0.5 * (each[0] + each[1]), phi @ phi.T, rtol=1e-10)
        by_group.append(each[:2])
    found = np.array(by_group)
    error = found.std(axis=0, ddof=1) / np.sqrt(60) + 1e-12
    off = np.abs(found.mean(axis=0) - kernel.matrix(theta, z, z))
    # Strata err by less than chance, and not by nothing.
    assert (off < 4.5 * error + 1e-3).all()


def test_groups_share_no_independent_frequency():
    kernel, rng = parse_kernel("ard + smooth", 2, has_coords=False), np.random.default_rng(0)
    features, share, group = _shares(kernel, kernel.start(1.0), 6 * GROUP_FREQUENCIES, rng, 9)
    assert group.tolist() == [0, 1, 2] * 3
    wide = share[: features.parts[0].n_feature]
    assert ((wide > 0).sum(axis=1) == 3).all()
    # A cosine and the sine beside it go together: a point keeps its variance.
    np.testing.assert_array_equal(wide[: wide.shape[0] // 2], wide[wide.shape[0] // 2 :])
    assert (share[features.parts[0].n_feature :] == 1).all()


@pytest.mark.parametrize(
    ("text", "n_feature", "n_draws"),
    [("linear", 1024, 8), ("smooth", 1024, 8), ("ard", GROUP_FREQUENCIES, 8), ("ard", 1024, 3)],
)
def test_functions_are_groups_of_their_own_where_there_is_nothing_to_part(text, n_feature, n_draws):
    kernel = parse_kernel(text, 2, has_coords=False)
    rng = np.random.default_rng(0)
    _, share, group = _shares(kernel, kernel.start(1.0), n_feature, rng, n_draws)
    assert group.tolist() == list(range(n_draws))
    assert (share == 1).all()


@pytest.mark.parametrize(("gap", "size", "dtype"), [(0.5, 5, np.float32), (1e-4, 500, np.float64)])
def test_single_precision_is_for_functions_that_it_does_not_round(gap, size, dtype):
    # Inducing points that all but coincide have large coefficients, which cancel.
    kernel = parse_kernel("matern52", 1, has_coords=False)
    theta, w = np.zeros(2), gap * np.arange(20.0)[:, None]
    k_ww, _ = kernel.inducing(theta, w)
    surface = Surface(kernel, theta, w, 0.0, "exp", 1.0)
    rng = np.random.default_rng(0)
    u_white, about = size * rng.standard_normal((20, 8)), np.zeros((20, 9))
    drawn = draw_functions(surface, factor_of(k_ww), u_white, about, 0.0, rng, 64, np.float32)
    assert drawn.dtype == dtype
    z = np.linspace(0, 20 * gap, 500)[:, None]
    error = drawn.latent(z.astype(drawn.dtype)) - drawn.latent(z)
    assert np.sqrt((error**2).mean()) < 1e-4
    both, _ = drawn.latent_and_about(z)
    np.testing.assert_allclose(both, drawn.latent(z), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_features_written_together_are_those_of_each_part(dtype):
    rng = np.random.default_rng(0)

    def part(n_column, n, amplitude):
        return Features(rng.standard_normal((n_column, n)), amplitude)

    inner = Features(None, None, (part(2, 7, 1.3), part(3, 2, None)))
    areas = AreaFeatures(np.zeros((4, 6)), 0.7, column=3)
    parts = (inner, areas, part(5, 9, 0.4), Features(None, None, (part(1, 1, 2.0),)))
    z = rng.standard_normal((50, 6)).astype(dtype)
    z[:, 3] = rng.integers(-1, 5, 50)

    def apart(features, z):
        if not features.parts:
            return features(z)
        return np.concatenate([apart(each, z) for each in features.parts], axis=1)

    for given in (Features(None, None, parts), inner, Features(None, None, (part(2, 3, None),))):
        for at in (z, np.asfortranarray(z), z[::2], z[:0]):
            found = given(at)
            assert found.dtype == dtype
            tolerance = 1e-13 if dtype == np.float64 else 2e-5
            np.testing.assert_allclose(found, apart(given, at), atol=tolerance)
