r"""A Gaussian process of what a bag is as a whole, beside that of its instances.

Of few bags a function of the instances is hard to learn. Mean, minimum and maximum of each
covariate over the bag (as extra trees are given them) and the logarithm of its size tell less and
are learnt sooner. They add to the logit of the bag

    g(s_b) = RBF GP of mean, minimum, maximum + slope * log size,

whose variances the evidence chooses with all others. Statistics are taken of the covariates as the
instances' kernel sees them; all four kinds are then scaled between bags, by ranks where the
instances are. The inducing points are training bags, all of them up to ``n_inducing``.
"""

from __future__ import annotations

import numpy as np

from models.core.block import BagBlock
from models.core.protocol import Arrays
from models.gp.inducing_points import choose_inducing_points
from models.gp.kernel_sums import Sum
from models.gp.kernel_terms import term_kernel
from models.gp.kernels import Kernel, Radial
from models.gp.regression_kernels import Ridge
from models.mil.pooled.rank_scaling import normal_scores, rank_knots

MOST_BAGS = 1000  # whose statistics are scaled by, and inducing points chosen from
OWN = "bag_"  # before the names of this part's arrays
# Median and deviation of the logarithm: of the deviation of g by the statistics, of the slope.
SD, SLOPE = (np.log(2.0), 0.75), (np.log(0.5), 0.75)


def statistics_of(z: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return mean, minimum and maximum of each column, and log size: (n_bag, 3 n_feat + 1)."""
    starts, size = offsets[:-1], np.diff(offsets)[:, None]
    parts = [np.add.reduceat(z, starts) / size]
    parts += [np.minimum.reduceat(z, starts), np.maximum.reduceat(z, starts), np.log(size)]
    return np.concatenate(parts, axis=1)


def chosen_bags(bag: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return the numbers of at most ``MOST_BAGS`` sampled bags, ascending: (n,) int64."""
    known = np.unique(bag) if bag is not None else np.zeros(0, np.int64)
    return np.sort(rng.permutation(known)[:MOST_BAGS]).astype(np.int64)


def placed_statistics(found: np.ndarray, block: BagBlock, chosen: np.ndarray) -> np.ndarray:
    """Return the statistics of the chosen bags in rows of their own: (n_chosen, n_stat).

    0 for those in other blocks, so that blocks add up.
    """
    out = np.zeros((chosen.shape[0], found.shape[1]))
    at = np.minimum(np.searchsorted(chosen, block.bag), chosen.shape[0] - 1)
    here = chosen[at] == block.bag
    out[at[here]] = found[here]
    return out


def begun(
    found: np.ndarray, n_inducing: int, *, ranks: bool, rng: np.random.Generator
) -> tuple[Arrays, Arrays]:
    """Return what the statistics (n_chosen, n_stat) fix, and the parameters at the start."""
    knots = rank_knots(found) if ranks else {}
    scores = normal_scores(knots, found) if ranks else found
    sd = scores.std(axis=0)
    fixed = {**knots, "mean": scores.mean(axis=0), "sd": np.where(sd > 0, sd, 1.0)}
    s = (scores - fixed["mean"]) / fixed["sd"]
    points = choose_inducing_points(s[:, :-1], n_inducing, rng)
    w = np.zeros((points.shape[0] + 1, s.shape[1]))
    w[:-1, :-1], w[-1, -1] = points, 1.0
    fixed |= {
        "term_values": np.array([points.shape[0], 1]),
        "term_nodes": np.ones(2, np.int64),
        "node_share": np.ones(w.shape[0]),
        "term_of": np.arange(2),
    }
    other = s[rng.permutation(s.shape[0]), :-1]
    apart = ((s[:, :-1] - other) ** 2).sum(axis=1)
    distance = float(np.sqrt(np.median(apart[apart > 0]))) if (apart > 0).any() else 1.0
    params = {"theta": np.array([2.0 * SD[0], np.log(distance), 2.0 * SLOPE[0]]), "w": w}
    fixed["first"] = params["theta"]
    return tuple({OWN + name: array for name, array in each.items()} for each in (fixed, params))  # type: ignore[return-value]


def prior_width(length: float) -> np.ndarray:
    """Return the deviations of the logarithms of the parameters, ``length`` of a length-scale."""
    return np.array([2.0 * SD[1], length, 2.0 * SLOPE[1]])


def bag_kernel(params: Arrays) -> Kernel | None:
    """Return the kernel of the bags' statistics; None where a state has none."""
    if OWN + "mean" not in params:
        return None
    last = params[OWN + "mean"].shape[0] - 1
    whole = Sum(
        Radial("rbf", (0, last), ard=False, label="statistics"), Ridge((last, last + 1), "size")
    )
    own = {k.removeprefix(OWN): array for k, array in params.items() if k.startswith(OWN)}
    return term_kernel(whole, own)


def scaled_statistics(params: Arrays, z: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the scaled statistics of bags of scaled covariates ``z``: (n_bag, n_stat)."""
    found = statistics_of(z, offsets)
    if OWN + "rank_value" in params:
        knots = {name: params[OWN + name] for name in ("rank_value", "rank_score")}
        found = normal_scores(knots, found)
    return np.asarray((found - params[OWN + "mean"]) / params[OWN + "sd"])


class BagColumns:
    """Whitened columns of the bags of one block.

    Parameters
    ----------
    params : dict of arrays
        ``bag_theta bag_w bag_lower_inv`` and what :func:`begun` fixed.
    s : (n_bag, n_stat) float64
        Scaled statistics.

    Attributes
    ----------
    u : (n_bag, n_value) float64
        ``g = u v`` for whitened ``v``.
    """

    def __init__(self, params: Arrays, s: np.ndarray) -> None:
        kernel = bag_kernel(params)
        assert kernel is not None
        self._kernel, self._params, self._s = kernel, params, s
        k, self._cache = kernel.cross(params[OWN + "theta"], s, params[OWN + "w"])
        self.u = k @ params[OWN + "lower_inv"].T

    def backward(self, adjoint: np.ndarray) -> Arrays:
        """Take the adjoint of ``u`` back to the kernel and to ``L``."""
        params = self._params
        by_theta = self._kernel.cross_backward(
            params[OWN + "theta"],
            self._s,
            params[OWN + "w"],
            self._cache,
            np.ascontiguousarray(adjoint @ params[OWN + "lower_inv"]),
            want_w=False,
        )[0]
        return {OWN + "theta": by_theta, OWN + "lower": -adjoint.T @ self.u}
