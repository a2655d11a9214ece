"""Effects of covariates: how the rate changes along one of them while all else is held.

A slope says what a covariate does only where the kernel holds it in a linear term and nowhere else.
Where it is in a smooth, or beside others, its effect is that of all functions that hold it
(:mod:`models.gp.components`). It is told by the rate at two or three values of the covariate, the
others at their means, on average over places: averages of ``f``, jointly normal under each draw of
the hyperparameters (:mod:`models.gp.averages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.aggregate.posterior import Gaussian, weighted_quantile
from models.aggregate.rate_draws import allocate
from models.aggregate.vbagg import VBAgg
from models.core.protocol import Arrays
from models.gp.components import held
from models.gp.kernel_terms import columns_of
from models.gp.scaling import scaled_inputs

PERCENTILES = (0.1, 0.5, 0.9)
N_PLACES = 64  # that averages are over, where the kernel looks at places
N_DRAWS = 20_000  # quantiles err by a hundredth of a deviation


@dataclass(frozen=True)
class Effect:
    """What the rate does along one covariate.

    Attributes
    ----------
    column : int
        Number of the covariate.
    at : (n_value,) float64
        Values of the covariate, as measured, rising: percentiles; or its mean and one deviation
        above.
    percentiles : bool
        Whether ``at`` are :data:`PERCENTILES`.
    linear : bool
        Whether ``f`` is linear in the covariate alone: its slope then says everything.
    beside : frozenset of int
        Other columns of the inputs that its effect differs with.
    rate : (n_draws, n_value) float64
        Joint draws of the rate at ``at``, per unit of weight.
    relative : bool
        Whether a change is told as a share of the rate, as the link has it.
    everywhere : bool
        Whether the change is the same whatever all else is.
    varies : float
        Standard deviation, over places as they are, of the change that the posterior's means of
        ``f`` make there: in the unit of the change.
    """

    column: int
    at: np.ndarray
    percentiles: bool
    linear: bool
    beside: frozenset[int]
    rate: np.ndarray
    relative: bool
    everywhere: bool
    varies: float = 0.0

    @property
    def change(self) -> np.ndarray:
        """Draws of what the last value has more than the first, (n_draws,)."""
        return _change(self.rate[:, 0], self.rate[:, -1], relative=self.relative)


def covariate_effects(
    model: VBAgg,
    x: np.ndarray,
    coords: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> list[Effect]:
    """Return the effect of each covariate that the kernel holds.

    Parameters
    ----------
    model : VBAgg
        Fitted.
    x : (n_pix, n_feat)
        Covariates as measured, of pixels whose percentiles are meant; behind them the number of the
        area, for a model that ``numbers_areas``.
    coords : (n_pix, n_axis), optional
        Their positions, km: the places of averages.
    weight : (n_pix,), optional
        Of each pixel in the percentiles; all alike if not given.
    """
    params, posterior = model.fitted_params(), model.posterior_
    share = posterior.weight
    kernel, link = model._kernel(params), model.resolved_link
    n_feat = x.shape[1] - model.numbers_areas  # an area is a place
    rows = np.linspace(0, x.shape[0] - 1, min(N_PLACES, x.shape[0])).astype(np.int64)
    real = scaled_inputs(params, x[rows], None if coords is None else coords[rows], np.float64)
    if columns_of(kernel)[1] <= n_feat:  # a place like any other
        rows = rows[:1]
    z = scaled_inputs(params, x[rows], None if coords is None else coords[rows], np.float64)
    z[:, :n_feat] = 0.0
    rng = np.random.default_rng(model.seed)
    dealt = allocate(share, N_DRAWS, rng)
    normal = rng.standard_normal((N_DRAWS, len(PERCENTILES)))
    base = float(params["base_rate"][0])
    found = []
    for column in range(n_feat):
        how = held(kernel.components, column)
        if how is None:
            continue
        at, percentiles = _values(params, x[:, column], weight, column, linear=how.linear)
        sets = np.repeat(z[None], at.size, axis=0)
        scaled = (at - params["x_mean"][column]) / params["x_sd"][column]
        sets[:, :, column] = scaled[:, None]
        f = _drawn(posterior.parts, sets, dealt, normal[:, : at.size])
        varies = 0.0
        if how.beside:
            ends = np.stack([real, real])
            ends[:, :, column] = scaled[[0, -1], None]
            means = [part.mean(ends) for part in posterior.parts]
            rates = base * link.value(np.tensordot(share / share.sum(), np.stack(means), axes=1))
            varies = float(_change(*rates, relative=link.relative).std())
        found.append(
            Effect(
                column=column,
                at=at,
                percentiles=percentiles,
                linear=how.linear,
                beside=how.beside,
                rate=base * link.value(f),
                relative=link.relative,
                everywhere=link.level_free and not how.beside,
                varies=varies,
            )
        )
    return found


def _change(first: np.ndarray, last: np.ndarray, *, relative: bool) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return last / first - 1.0 if relative else last - first


def _values(
    params: Arrays, x: np.ndarray, weight: np.ndarray | None, column: int, *, linear: bool
) -> tuple[np.ndarray, bool]:
    """Return the values of a covariate that its effect is told at; whether percentiles.

    A line is told by its slope. So is a covariate that most pixels have one value of.
    """
    weight = np.ones(x.shape) if weight is None else weight
    at = np.array([weighted_quantile(x, weight, q) for q in PERCENTILES])
    mean, sd = float(params["x_mean"][column]), float(params["x_sd"][column])
    if linear or not at[-1] > at[0]:
        return np.array([mean, mean + sd]), False
    return at, True


def _drawn(
    parts: Sequence[Gaussian], sets: np.ndarray, dealt: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Draw the averages of ``f`` over sets of places, those of each part its share."""
    f = np.empty(normal.shape)
    for number, part in enumerate(parts):
        own = dealt == number
        mean, cov = part.averages(sets)
        value, vector = np.linalg.eigh(cov)
        root = vector * np.sqrt(np.maximum(value, 0.0))
        f[own] = mean + normal[own] @ root.T
    return f
