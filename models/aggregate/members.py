"""Draws of the hyperparameters with their posteriors ("members"), and what is pooled over them.

A fitted model whose hyperparameters are integrated holds, beside its optimum, some draws of them,
each with the posterior of the surface given that draw (:attr:`models.core.protocol.State.members`).
Each makes a model of its own, without members; a prediction pools theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from models.aggregate.aggregate_model import RateDraws
from models.core.block import BagBlock
from models.core.protocol import Arrays, State, override

WEIGHT = "weight"
PREFIX = "member/"  # of the stacked arrays among the block parameters


class MemberDraws(RateDraws, Protocol):
    """Surfaces of one member, with the likelihood's parameters."""

    params: dict[str, float]
    clusters: np.ndarray

    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        """Return factors that condition drawn aggregates on the bags' responses."""


def member_states(state: State) -> list[State]:
    """Return the state of each member, without members; none where there are none."""
    own = {name: array for name, array in state.members.items() if name != WEIGHT}
    return [
        replace(
            state,
            params={**state.params, **{name: array[k] for name, array in own.items()}},
            memory={},
            members={},
        )
        for k in range(len(state.members.get(WEIGHT, ())))
    ]


def stacked(shared: Arrays, each: Sequence[Arrays], weight: np.ndarray) -> Arrays:
    """Join the block parameters of the members to those of the optimum.

    Parameters
    ----------
    shared : dict of arrays
        Block parameters of the optimum. What no member changes is kept once.
    each : sequence of dict of arrays
        Block parameters of each member, of the same names and shapes.
    weight : (n_member,) float64

    Returns
    -------
    dict of arrays
        ``shared``, and ``member/NAME`` (n_member, ...).
    """
    own = {
        PREFIX + name: np.stack([params[name] for params in each])
        for name, array in shared.items()
        if any(params[name] is not array for params in each)
    }
    return {**shared, **own, PREFIX + WEIGHT: np.asarray(weight, dtype=np.float64)}


def unstacked(params: Arrays) -> list[Arrays]:
    """Return the block parameters of each member; none where there are none."""
    own = {
        name.removeprefix(PREFIX): array
        for name, array in params.items()
        if name.startswith(PREFIX) and name != PREFIX + WEIGHT
    }
    shared = {name: array for name, array in params.items() if not name.startswith(PREFIX)}
    return [
        {**shared, **{name: array[k] for name, array in own.items()}}
        for k in range(len(params.get(PREFIX + WEIGHT, ())))
    ]


def allocate(weight: np.ndarray, n_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Deal draws to members by systematic sampling: each gets its share, to within one draw.

    Parameters
    ----------
    weight : (n_member,) float64
        Probabilities.
    n_draws : int
    rng : numpy Generator

    Returns
    -------
    (n_draws,) int64
        Member of each draw, in random order: any first few are a fair sample.
    """
    ends = np.cumsum(weight)
    at = (np.arange(n_draws) + rng.random()) / n_draws * ends[-1]
    last = int(np.flatnonzero(np.asarray(weight) > 0)[-1])  # rounding may lead past the last end
    chosen = np.minimum(np.searchsorted(ends, at, side="right"), last)
    return np.asarray(rng.permutation(chosen))


@dataclass(frozen=True)
class PooledDraws:
    """Rate surfaces drawn from several members: the same whatever the tiles.

    Attributes
    ----------
    parts : sequence of draws
        Of each member that has any.
    order : (n_draws,) int64
        Row of each draw in the parts, one after the other.
    """

    parts: Sequence[MemberDraws]
    order: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[MemberDraws], member: np.ndarray) -> PooledDraws:
        """Pool the draws of ``parts``, one part for each that is in ``member`` (n_draws,)."""
        rank = np.empty(member.shape[0], dtype=np.int64)
        rank[np.argsort(member, kind="stable")] = np.arange(member.shape[0])
        return cls(tuple(parts), rank)

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""
        return int(self.order.shape[0])

    @property
    def clusters(self) -> np.ndarray:
        """Member and group of random features of each draw: (n_draws, 2) int64."""
        each = [
            np.stack([np.full(part.n_draws, k), part.clusters[:, 1]], axis=1)
            for k, part in enumerate(self.parts)
        ]
        return np.concatenate(each)[self.order]

    @property
    def params(self) -> Arrays:
        """The likelihood's parameters (logarithms) of each draw: (n_draws, 1) by name."""
        return {
            name: np.concatenate(
                [np.full((part.n_draws, 1), part.params[name]) for part in self.parts]
            )[self.order]
            for name in self.parts[0].params
        }

    @override
    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate([part.rate(x, coords) for part in self.parts])[self.order]

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        return np.concatenate([part.bag_counts(bags) for part in self.parts])[self.order]

    @override
    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        found, inverse = np.empty_like(drawn), np.empty_like(self.order)
        inverse[self.order] = np.arange(self.n_draws)  # row of each part's draw
        at = 0
        for part in self.parts:
            rows = inverse[at : at + part.n_draws]
            found[rows] = part.observed_factors(bags, drawn[rows])
            at += part.n_draws
        return found


def tabulated(
    mode: dict[str, float], each: Sequence[dict[str, float]], weight: np.ndarray | None
) -> dict[str, dict[str, float]]:
    """Return each parameter's ``mode`` and, with members, ``mean`` and 90 % interval.

    Parameters
    ----------
    mode : dict of float
    each : sequence of dict of float
        The same parameters of each member.
    weight : (n_member,) float64, or None without members
    """
    table = {name: {"mode": value} for name, value in mode.items()}
    if weight is None:
        return table
    for name, row in table.items():
        value = np.array([member[name] for member in each])
        row["mean"] = float(weight @ value)
        row["lower"], row["upper"] = (weighted_quantile(value, weight, q) for q in (0.05, 0.95))
    return table


def weighted_quantile(value: np.ndarray, weight: np.ndarray, q: float) -> float:
    """Return a quantile of weighted values, by interpolation between the middles of their weights.

    The ends are the smallest and the largest value: few draws tell little of the tails.

    Parameters
    ----------
    value, weight : (n,) float64
    q : float
        In (0, 1).
    """
    order = np.argsort(value, kind="stable")
    share = weight[order] / weight.sum()
    return float(np.interp(q, np.cumsum(share) - 0.5 * share, value[order]))
