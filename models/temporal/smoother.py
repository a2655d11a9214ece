"""Which way to the posterior of all periods costs less: by a filter, or by one factorisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.temporal.marginal import MarginalPath
from models.temporal.path_prior import Group, PathPrior
from models.temporal.sites import Split
from models.temporal.state_space import StateSpace
from models.temporal.states import Part


def path_prior(groups: Sequence[Group], times: np.ndarray, split: Split) -> PathPrior:
    """Return the prior of all periods in the form whose posterior costs less."""
    if marginal_is_cheaper(groups, times.size, split):
        return MarginalPath(groups, times, split)
    return StateSpace(groups, times, split=split)


def marginal_is_cheaper(groups: Sequence[Group], n_period: int, split: Split) -> bool:
    """Return whether the effects of areas are better integrated out than filtered.

    By the multiplications of a smoother: both ways give the same.
    """
    if not split.n_own:
        return False
    filtered, marginal = smoother_sizes(groups, split, n_period, split.n_own)
    return marginal.work < filtered.work


@dataclass(frozen=True)
class SmootherSize:
    """What a smoother of all periods takes, nearly.

    Attributes
    ----------
    work : float
        Multiplications.
    kept : float
        Numbers in memory at once.
    """

    work: float
    kept: float


def smoother_sizes(
    groups: Sequence[Group], split: Split, n_period: int, n_own: int
) -> tuple[SmootherSize, SmootherSize]:
    """Return what the filter takes, and what the marginal way does.

    Parameters
    ----------
    groups : sequence of Group
    split : Split
    n_period, n_own : int
        Periods and effects of areas; of ``groups`` the number of the latter does not matter.
    """
    own, n_shared = np.arange(split.n_value)[split.own], split.shared.size
    n_x = n_still = n_moving = still = moving = 0
    for group in groups:
        part, shared = Part(group), np.setdiff1d(group.values, own).size
        n = shared + (n_own if shared < group.values.size else 0)
        n_x += n * part.h.size
        n_still += n * part.holds
        n_moving += n * bool(part.h.size)
        if group.kernel.still:
            still += shared
        else:
            moving += shared
    unknown = still + moving * n_period
    rank = min(n_shared, n_own) + n_own if split.n_own else n_shared
    both = n_x + n_still
    of_a_period = 4.0 * n_x * both * rank + rank * n_still**2 + n_moving * both * (both + n_moving)
    filtered = SmootherSize(
        n_period * of_a_period + n_still**3,
        float(n_period) * n_x * (both + 2 * (n_shared + n_own)),
    )
    of_an_area = (
        1.5 * n_period**2 * moving**2
        + 2.0 * n_period * still * (still + 2 * moving)
        + n_period**2 * (5 * still + 8 * n_period)  # between its periods
    )
    loads = n_own * n_period * (5 * still + 2 * moving)  # by area and by period, and what they meet
    effects = n_period * n_own * (2 * n_shared + 8 * n_period) + loads
    marginal = SmootherSize(
        float(unknown) ** 3 + n_own * of_an_area,
        4.0 * unknown**2 + n_period * n_shared**2 + effects,
    )
    return filtered, marginal
