"""What a classifier's kernel sees of the features: those with spread, in deviations.

A feature that is the same in all training instances says nothing of their labels. Were it a column
of the kernel's inputs, the length-scale, which starts at the root of the number of columns, and
what is drawn for each column would follow from how many such features there are; and an instance
with another value of one would be far from everything. So the inputs leave it out, in predictions
too. Everything that users see (the number of features, their names, their order) has all of them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from models.core.protocol import Arrays, Summary, override
from models.gp.kernel_model import KernelModel
from models.gp.kernels import Kernel
from models.gp.scaling import scaled_inputs, scaling_of

USED = "x_used"  # columns of the features with spread, where there are others; older models lack it
COLUMNS = ("x_mean", "x_sd")  # arrays of one value a feature
ROUNDING = 1e-12  # deviation of a constant as it is computed, as a share of its size, at most
FAR = 1e140  # ranges above, and below its inverse, whose squares are no numbers


def classifier_scaling(sample: Summary) -> Arrays:
    """Return what :func:`scaled_columns` needs.

    Parameters
    ----------
    sample : Summary
        Of the training bags.
    """
    fixed = {k: v for k, v in scaling_of(sample, 1.0).items() if k != "base_rate"}
    with np.errstate(over="ignore"):
        spread = np.ptp(sample.x, axis=0)
    far = (spread > FAR) | ((spread > 0) & (spread < 1.0 / FAR))
    if far.any():
        mean, sd = fixed["x_mean"].copy(), fixed["x_sd"].copy()
        mean[far], sd[far] = _far_scaling(sample.x[:, far])
        fixed |= {"x_mean": mean, "x_sd": sd}
    # A rare feature can be constant in the sample alone. Of one that is constant everywhere the
    # deviation is 1, or what rounding leaves of 0.
    mean, sd = fixed["x_mean"], fixed["x_sd"]
    used = (spread > 0) | ((sd != 1.0) & (sd > ROUNDING * np.abs(mean)))
    return with_columns(fixed, used)


def with_columns(fixed: Arrays, used: np.ndarray) -> Arrays:
    """Say which features (n_feat,) bool have spread; all stay where none has."""
    fixed = {name: array for name, array in fixed.items() if name != USED}
    return fixed if used.all() or not used.any() else {**fixed, USED: np.flatnonzero(used)}


def n_used(fixed: Arrays) -> int:
    """Return the number of columns that features have in the scaled inputs."""
    return int(fixed[USED].size if USED in fixed else fixed["x_mean"].size)


def of_columns(fixed: Arrays) -> Arrays:
    """Return the arrays with the features that have spread alone."""
    if USED not in fixed:
        return fixed
    return {**fixed, **{name: fixed[name][fixed[USED]] for name in COLUMNS}}


def scaled_columns(fixed: Arrays, x: Any, coords: Any, dtype: Any) -> np.ndarray:
    """:func:`models.gp.scaling.scaled_inputs` of the features with spread: (n_pix, n_dim)."""
    if x.ndim != 2 or x.shape[1] != fixed["x_mean"].size:
        return scaled_inputs(fixed, x, coords, dtype)  # which says what is wrong
    own, sd = of_columns(fixed), fixed["x_sd"]
    if USED in fixed:
        x = x[:, fixed[USED]]
    if np.dtype(dtype) == np.float32 and ((sd > 1e30) | (sd < 1e-30)).any():
        return scaled_inputs(own, x, coords, np.float64).astype(dtype)
    return scaled_inputs(own, x, coords, dtype)


class SpreadKernelModel(KernelModel):
    """Base of the classifiers that have a kernel of the features with spread."""

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        """Return the learnt parameters by name; columns have their numbers among all features."""
        named, fixed = super().named_hyperparameters(), self.fitted_params()
        if USED not in fixed:
            return named
        used = fixed[USED].tolist()

        def numbered(name: str) -> str:
            if "_space" in name:
                return name
            return re.sub(r"\[(\d+)\]$", lambda at: f"[{used[int(at[1])]}]", name)

        return {numbered(name): value for name, value in named.items()}

    @override
    def _kernel(self, fixed: Arrays) -> Kernel:
        return super()._kernel(of_columns(fixed))

    @override
    def _scaled(self, params: Arrays, x: Any, coords: Any) -> np.ndarray:
        return scaled_columns(params, x, coords, self._precision(params))


def _far_scaling(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of columns whose squares are no numbers, by their size first."""
    size = np.exp2(np.floor(np.log2(np.abs(x).max(axis=0))))
    part = x / size
    return part.mean(axis=0) * size, part.std(axis=0) * size
