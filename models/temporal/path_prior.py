"""The prior of the inducing values over periods, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.temporal.markov import MarkovKernel
from models.temporal.sites import Arrow, Site


@dataclass(frozen=True)
class Group:
    """Whitened values that share a kernel in time.

    Attributes
    ----------
    kernel : MarkovKernel
    theta : (n_theta,) float64
    values : (n,) int64
        Their places in ``v``.
    """

    kernel: MarkovKernel
    theta: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Smoothed:
    """The posterior of ``v_t`` given all sites.

    Attributes
    ----------
    mean : (n_period, n_value) float64
    cov : list of Arrow
        Of each period: without what stands between the effects of two areas.
    log_z : float
        ``log E_prior prod_t site_t``, nats.
    by_time : list of (n_theta,) float64
        Slopes of ``log_z`` by the parameters of each group's kernel; empty unless asked for.
    """

    mean: np.ndarray
    cov: list[Arrow]
    log_z: float
    by_time: list[np.ndarray]


@dataclass(frozen=True)
class SiteSlopes:
    """What slopes of ``log Z`` by functions of the sites need of the posterior.

    Attributes
    ----------
    mean : (n_period, n_value) float64
    products : list of ((n_shared, n_shared) float64, float)
        Of each site's precision with the covariance: the shared part, and the trace of the own one.
    by_time : list of (n_theta,) float64
        As of :class:`Smoothed`.
    """

    mean: np.ndarray
    products: list[tuple[np.ndarray, float]]
    by_time: list[np.ndarray]


class PathPrior(Protocol):
    """The prior of ``v_1 ... v_T``, and what it makes of sites."""

    @property
    def times(self) -> np.ndarray:
        """Times of the periods: (n_period,), ascending."""

    def smooth(self, sites: Sequence[Site], *, slopes: bool = False) -> Smoothed:
        """Return the posterior of all ``v_t``, slopes by the kernels' parameters where wanted."""

    def site_slopes(self, sites: Sequence[Site]) -> SiteSlopes:
        """Return what slopes by functions of the sites need: less than the covariances."""

    @property
    def n_byte(self) -> int:
        """Memory that a smoother holds."""

    def after(self, sites: Sequence[Site]) -> PathPrior:
        """Return the prior of the periods after those of ``sites``, which are known."""

    def draws(self, sites: Sequence[Site], n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``v_1 ... v_T`` jointly from the posterior: (n_period, n_value, n_draws)."""

    def prior_draws(self, n_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draw paths of ``v`` from the prior: (n_period, n_value, n_draws)."""
