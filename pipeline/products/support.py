r"""Where the map is ruled by its prior: the values of ``data_support.tif``.

*Data support* of a pixel is the share of the prior variance of the surface's rough part (all of the
kernel but slopes and intercept) that the data removed:

    support = 1 - Var[f | data] / Var[f_rough],    clipped to [0, 1].

Counts say nothing of variation below the size of an area: where support is low, the interval is
what the prior and the hyperparameters say. A rough part that is smaller than matters (a tenth of a
large deviation of ``f``: 10 % of the rate under the exponential link) rules nothing: its variance
counts as that much.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import namespace
from models.gp.kernel_sums import Sum
from models.gp.kernel_terms import TermKernel
from models.gp.kernels import Constant, Kernel, Linear
from models.gp.regression_kernels import Ridge
from models.gp.scaling import scaled_inputs
from models.likelihoods.links import find_link

SMALL_SD = 0.1  # share of a large deviation of ``f`` that matters to nobody


def data_support(model: Any, prediction: Any, x: Any, coords: Any) -> Any:
    """Return the share of the prior variance that the data removed, (n_pix,), 0 to 1.

    Parameters
    ----------
    model : fitted VBAgg
    prediction : Prediction or a mixture of them
        Of these pixels, by the model.
    x : (n_pix, n_feat), covariates as measured
    coords : (n_pix, n_axis), km, or None

    Returns
    -------
    (n_pix,) array
        Where hyperparameters are integrated, the average over their draws.
    """
    parts = model.posterior_.parts
    z = scaled_inputs(parts[0].params, x, coords, np.float64)
    least = (SMALL_SD * find_link(prediction.link).large_sd) ** 2
    xp = namespace(z)

    def support(part: Any, posterior: Any) -> Any:
        prior = xp.maximum(rough_variance(part.kernel, part.params["theta"], z), least)
        return xp.clip(1.0 - posterior / prior, 0.0, 1.0)

    each = zip(parts, prediction.parts, prediction.weights, strict=True)
    return sum(float(weight) * support(part, own.s) for part, own, weight in each)


def rough_variance(kernel: Kernel, theta: np.ndarray, z: Any) -> Any:
    """Return the prior variance of all but the slopes and the intercept of a kernel, (n_pix,).

    That of the whole kernel where it has nothing else.

    Parameters
    ----------
    kernel : Kernel
    theta : (n_theta,) array, logarithms
    z : (n_pix, n_dim) array
        Scaled inputs.
    """
    found = _rough(kernel, theta, z)
    return kernel.diag(theta, z) if found is None else found


def _rough(kernel: Kernel, theta: np.ndarray, z: Any) -> Any:
    if isinstance(kernel, TermKernel):
        kernel = kernel.whole
    if isinstance(kernel, Linear | Ridge | Constant):
        return None
    if not isinstance(kernel, Sum):
        return kernel.diag(theta, z)
    n_left = kernel.left.n_theta
    left, right = _rough(kernel.left, theta[:n_left], z), _rough(kernel.right, theta[n_left:], z)
    if left is None or right is None:
        return right if left is None else left
    return left + right
