"""Units that a fit works in: covariates and coordinates near 1, rates near 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.backend.arrays import fused, like, namespace
from models.core.errors import BagsError
from models.core.protocol import Arrays, Summary
from models.gp.kernel_terms import term_kernel
from models.gp.kernel_text import parse_kernel
from models.gp.kernels import Kernel


def scaling_of(sample: Summary, base: float) -> Arrays:
    """Return what :func:`scaled_inputs` needs, and the base rate."""
    fixed = {"x_mean": sample.x_mean, "x_sd": sample.x_sd, "base_rate": np.array([base])}
    if sample.coords is not None:
        centre = sample.coords.mean(axis=0)
        fixed["coord_mean"] = centre
        # Of the two axes of the Earth's surface: a third, up, must not lessen the deviation.
        spread = np.sqrt(((sample.coords - centre) ** 2).mean() * (0.5 * centre.size))
        fixed["coord_scale"] = np.array([spread if spread > 0 else 1.0])
        side = area_side(sample)
        if side is not None:
            fixed["area_side"] = np.array([side / float(fixed["coord_scale"][0])])
    return fixed


def area_side(sample: Summary) -> float | None:
    """Return the side of a square area as wide as a typical training area, km; None if unknown.

    From the variance of the coordinates inside areas: ``side^2 / 6``, both axes together.
    """
    if sample.bag is None or sample.coords is None:
        return None
    bags, which, count = np.unique(sample.bag, return_inverse=True, return_counts=True)
    if (count < 2).all():
        return None
    centre = np.stack([np.bincount(which, c) for c in sample.coords.T], axis=1) / count[:, None]
    off = ((sample.coords - centre[which]) ** 2).sum(axis=1)
    several = count > 1
    variance = np.bincount(which, off, bags.size)[several] / (count[several] - 1)
    side = float(np.sqrt(6.0 * np.median(variance)))
    return side if side > 0 else None


def scaled_inputs(fixed: Arrays, x: Any, coords: Any, dtype: Any) -> np.ndarray:
    """Join scaled covariates and scaled coordinates: (n_pix, n_dim)."""
    n_feat = fixed["x_mean"].shape[0]
    if x.ndim != 2 or x.shape[1] != n_feat:
        msg = f"x has shape {x.shape}; the model was fitted with {n_feat} covariates"
        raise BagsError(msg)
    parts = [_scaled(x, fixed["x_mean"], fixed["x_sd"], dtype)]
    if "coord_scale" in fixed:
        if coords is None:
            n_axis = fixed["coord_mean"].size
            msg = f"the model was fitted with coordinates; give coords (n_pix, {n_axis}), km"
            raise BagsError(msg)
        if coords.shape != (x.shape[0], fixed["coord_mean"].size):
            n_axis = fixed["coord_mean"].size
            msg = (
                f"coords has shape {coords.shape}; the model was fitted with {n_axis} columns: fit "
                "it again on these positions"
            )
            raise BagsError(msg)
        centre = like(fixed["coord_mean"], coords)
        parts.append((coords - centre) / float(fixed["coord_scale"][0]))
    return namespace(x).concatenate(parts, axis=1).astype(dtype, copy=False)


@fused
def _standard(xp: Any, x: Any, mean: Any, sd: Any) -> Any:
    del xp
    return (x - mean) / sd


def _scaled(x: Any, mean: Any, sd: Any, dtype: Any) -> Any:
    if namespace(x) is not np:
        return _standard(x.astype(np.float64, copy=False), like(mean, x), like(sd, x))
    if np.dtype(dtype) != np.float32:
        return (x - mean) / sd
    # Differences in double precision, without double arrays of all pixels: nine times as fast.
    z = np.empty(x.shape, dtype)
    np.subtract(x, mean, out=z, casting="same_kind")
    z /= sd.astype(dtype)
    return z


def kernel_of(text: str, fixed: Arrays) -> Kernel:
    """Build the kernel that a description means for inputs so scaled."""
    n_feat = fixed["x_mean"].shape[0]
    n_axis = fixed["coord_mean"].size if "coord_scale" in fixed else 0
    whole = parse_kernel(text, n_feat, has_coords=n_axis > 0, n_axis=n_axis)
    return term_kernel(whole, fixed)


def named_kernel(kernel: Kernel, theta: np.ndarray, fixed: Arrays) -> dict[str, float]:
    """Return a kernel's parameters by name; length-scales of space in km, not as scaled."""
    values = dict(zip(kernel.names, np.exp(theta).tolist(), strict=True))
    if "coord_scale" in fixed:
        scale = float(fixed["coord_scale"][0])
        for name in values:
            if "_space" in name and ".lengthscale" in name:
                values[name] *= scale
    return values
