"""What the models of one Gaussian process share: their kernel and its matrices."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from models.core.protocol import Arrays, override
from models.gp.kernel_text import ALONE, BARE, SPACELESS
from models.gp.kernels import Kernel
from models.gp.scaling import kernel_of, named_kernel, scaled_inputs
from models.gp.sparse_gp import Factored, Whitened, factorise
from models.training.estimator import Estimator

EXACT = "exact"  # block parameter under which all matrices are float64


def exactly(params: Arrays) -> Arrays:
    """Return block parameters under which the pixel matrices have float64.

    What the data leave of a variance can be a ten-thousandth of the prior's: float32 loses it in
    the difference, and natural steps to an optimum then go astray.
    """
    return {**params, EXACT: np.ones(1)}


class KernelModel(Estimator):
    """Base of the models whose latent surface has a kernel; mix it in before the other base."""

    #: What ``kernel="auto"`` stands for.
    auto_kernel: ClassVar[str] = "additive"

    kernel: str
    dtype: str = "float64"

    @override
    def named_hyperparameters(self) -> dict[str, float]:
        """Return the learnt parameters by name, in the units of the scaled data.

        Length-scales of space are in km; those of covariates in standard deviations.
        """
        params = self.fitted_params()
        named = named_kernel(self._kernel(params), params["theta"], params)
        return {**super().named_hyperparameters(), **named}

    def kernel_text(self, fixed: Arrays) -> str:
        """Return the kernel's description, ``auto`` resolved for inputs scaled by ``fixed``."""
        if self.kernel != "auto":
            return self.kernel
        name = self.auto_kernel
        if not fixed["x_mean"].size and "coord_scale" in fixed:
            return BARE
        if fixed["x_mean"].size < 2:
            name = ALONE.get(name, name)
        return name if "coord_scale" in fixed else SPACELESS[name]

    def _kernel(self, fixed: Arrays) -> Kernel:
        return kernel_of(self.kernel_text(fixed), fixed)

    def _scaled(self, params: Arrays, x: Any, coords: Any) -> np.ndarray:
        return scaled_inputs(params, x, coords, self._precision(params))

    def _precision(self, params: Arrays) -> np.dtype[Any]:
        """Return the precision of the pixel matrices; few pixels are worth all digits."""
        return np.dtype("float64" if {"thin", EXACT} & params.keys() else self.dtype)

    def _low(self, params: Arrays) -> Arrays:
        """Convert the arrays of the pixels' matrix products to their precision."""
        names = [name for name in ("w", "alpha", "q", "cov") if name in params]
        return {
            **params,
            **{name: params[name].astype(self._precision(params), copy=False) for name in names},
        }

    def _factored(
        self, kernel: Kernel, params: Arrays, fixed: Arrays
    ) -> tuple[np.ndarray, Any, Factored]:
        """Factorise ``K_WW``, once for the two calls of a step, and for steps of ``q`` alone.

        ``fixed`` are the constants that the kernel is of: those of another fit are another kernel,
        even where its parameters are the same.
        """
        kept = getattr(self, "_kept", None)
        if kept is None or kept[0] is not params:
            known: Factored | None = None
            if (
                kept is not None
                and kept[1] is fixed
                and all(np.array_equal(kept[0][name], params[name]) for name in ("theta", "w"))
            ):
                k_ww, cache, known = kept[2]
            else:
                k_ww, cache = kernel.inducing(params["theta"], params["w"])
            kept = (params, fixed, (k_ww, cache, factorise(k_ww, whitened(params), known)))
            self._kept = kept
        made: tuple[np.ndarray, Any, Factored] = kept[2]
        return made


def whitened(params: Arrays) -> Whitened:
    """Return ``q`` over the whitened inducing values of a state."""
    return Whitened(params["v_mean"], params["root"])
