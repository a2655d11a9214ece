"""Settings that once ended in an error, with what the fuzz of fits makes of them now."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import fits_fuzz
from models.gp.sparse_gp import inverse_root

COUNTRY = {
    **{"n_side": 16, "n_covariate": 3, "odd_covariate": "none", "field_sd": 1.0, "empty": False},
    **{"n_area": 20, "cases": 1e5, "noise": 1.0, "gamma": True},
}
SECOND_ORDER = {"link": "exp", "estimator": "second_order", "kernel": "ridge + matern32(space)"}
#: Changes of the model and of the country, the seed of the country, and how it ends.
ONCE_FAILED = {
    "no Cholesky factor": ({"likelihood": "negative_binomial", **SECOND_ORDER}, {}, 1),
    "a precision beyond rounding": ({"likelihood": "negative_binomial", **SECOND_ORDER}, {}, 7),
    "no case": ({"likelihood": "poisson", "kernel": "auto"}, {"cases": 0.0, "noise": 0.0}, 0),
    "no positive": ({"likelihood": "binomial"}, {"cases": 0.0, "noise": 0.0}, 0),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", ONCE_FAILED)
def test_what_once_failed_ends(name):
    model, country, seed = ONCE_FAILED[name]
    model = {"kind": "vbagg", "integrate": 2, **model}
    found = fits_fuzz.run_setting(model, {**COUNTRY, **country}, [seed])
    assert found["outcome"] in ("ok", "not converged"), found


def test_a_kernel_of_which_nothing_can_be_drawn_is_refused_before_the_fit():
    model = {"kind": "vbagg", "likelihood": "poisson", "kernel": "linear * matern32(space)"}
    found = fits_fuzz.run_setting(model, COUNTRY, [0])
    assert found["outcome"] == "refused"
    assert "kernel: joint draws of a product" in found["error"]
    assert "write the product out as a sum" in found["error"]


def test_the_fuzz_sees_what_fails(monkeypatch):
    """Else a clean record would say nothing."""
    model = {"kind": "constant", "likelihood": "poisson"}

    def outcome():
        return fits_fuzz.run_setting(model, {**COUNTRY, "cases": 50.0}, [0])["outcome"]

    assert outcome() in ("ok", "not converged")

    def breaks(*_):
        raise np.linalg.LinAlgError("a matrix")

    monkeypatch.setattr(fits_fuzz, "judged", breaks)
    assert outcome() == "traceback"
    monkeypatch.setattr(fits_fuzz, "LIMIT_S", 0.05)

    def hangs(*_):
        while True:
            pass

    monkeypatch.setattr(fits_fuzz, "judged", hangs)
    assert outcome() == "over time"


@pytest.mark.parametrize("scale", [1.0, 1e12, 1e20])
def test_the_root_of_an_inverse_exists_however_large_the_precision(scale):
    rows = np.random.default_rng(0).standard_normal((3, 8))
    precision = np.eye(8) + scale * rows.T @ rows
    root = inverse_root(precision)
    assert not np.triu(root, 1).any()
    assert (np.diag(root) > 0).all()
    cov = root @ root.T
    # No wider than the prior, but for what rounds away of the precision.
    assert np.linalg.eigvalsh(cov).max() < 1.0 + 1e-9 + min(1e-14 * scale, 1e-2)
    if scale > 1e15:  # rounding of the precision is larger than the prior's
        return
    # Where the data say nothing the prior stays; where they say all, nothing is left.
    free = np.eye(8) - np.linalg.pinv(rows) @ rows
    np.testing.assert_allclose(free @ cov @ free, free, atol=1e-3)
    assert np.abs(rows @ cov @ rows.T).max() < 2.0 / scale + 1e-6
