"""Whole rate surfaces drawn from a posterior: the same whatever the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.aggregate.observed_draws import Condition, Whole, WholeSums
from models.core.block import BagBlock
from models.core.protocol import Arrays, override
from models.gp.draws import ROWS, FunctionDraws, add_by_bag
from models.gp.scaling import scaled_inputs
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import find_link
from models.likelihoods.observation import bag_weights


@dataclass(frozen=True)
class SurfaceDraws:
    """Rate surfaces drawn under one set of hyperparameters.

    Attributes
    ----------
    functions : FunctionDraws
    fixed : dict of arrays
        Scalings of the inputs.
    likelihood : Likelihood
    params : dict of float
        Its parameters, logarithms.
    condition : Condition
        What conditions drawn aggregates of bags on their responses.
    """

    functions: FunctionDraws
    fixed: Arrays
    likelihood: Likelihood
    params: dict[str, float]
    condition: Condition

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""
        return self.functions.n_draws

    @property
    def clusters(self) -> np.ndarray:
        """The only set of hyperparameters, and the group of random features: (n_draws, 2)."""
        return np.stack([np.zeros_like(self.functions.group), self.functions.group], axis=1)

    def afresh(self) -> SurfaceDraws:
        """Return the same surfaces; what conditions them holds no memory yet."""
        return replace(self, condition=self.condition.afresh())

    def share(self, first: int, step: int) -> SurfaceDraws:
        """Return every ``step``-th surface from ``first`` on."""
        return self.some(np.arange(first, self.n_draws, step))

    def some(self, rows: np.ndarray) -> SurfaceDraws:
        """Return some of the surfaces, by their places (n,)."""
        functions, condition = self.functions.some(rows), self.condition.some(rows)
        return replace(self, functions=functions, condition=condition)

    @override
    def alone(self, number: int) -> tuple[SurfaceDraws, int]:
        return self, number

    @override
    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        z = scaled_inputs(self.fixed, x, coords, self.functions.dtype)
        surface = self.functions.surface
        value = find_link(surface.link).value(self.functions.latent(z)).T
        return surface.scale * value.astype(np.float64, copy=False)

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        return _over_times([self], [bags], conditioned=False)[0][0]

    @override
    def counted(self, bags: BagBlock) -> CountedDraws:
        return count_over_times([self], [bags])[0]

    @override
    def observed_factors(
        self, bags: BagBlock, drawn: np.ndarray, wholes: Sequence[Whole | None] | None = None
    ) -> np.ndarray:
        whole = None if wholes is None else wholes[0]
        return self.condition.factors(bags, drawn, whole=whole)


@dataclass(frozen=True)
class PooledDraws:
    """Rate surfaces drawn under several sets of hyperparameters.

    Attributes
    ----------
    parts : sequence of SurfaceDraws
        Of each set that has any.
    member : (n_draws,) int64
        Set of each draw.
    order : (n_draws,) int64
        Row of each draw in the parts, one after the other.
    """

    parts: Sequence[SurfaceDraws]
    member: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[SurfaceDraws], member: np.ndarray) -> PooledDraws:
        """Pool the draws of ``parts``, one part for each that is in ``member`` (n_draws,)."""
        rank = np.empty(member.shape[0], dtype=np.int64)
        rank[np.argsort(member, kind="stable")] = np.arange(member.shape[0])
        return cls(tuple(parts), member, rank)

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""
        return int(self.order.shape[0])

    @property
    def clusters(self) -> np.ndarray:
        """Set of hyperparameters and group of random features of each draw: (n_draws, 2) int64."""
        group = np.concatenate([part.clusters[:, 1] for part in self.parts])
        return np.stack([self.member, group[self.order]], axis=1)

    @property
    def params(self) -> Arrays:
        """The likelihood's parameters (logarithms) of each draw: (n_draws, 1) by name."""
        return {
            name: np.concatenate(
                [np.full((part.n_draws, 1), part.params[name]) for part in self.parts]
            )[self.order]
            for name in self.parts[0].params
        }

    def afresh(self) -> PooledDraws:
        """Return the same surfaces, as each part's :meth:`SurfaceDraws.afresh`."""
        return replace(self, parts=tuple(part.afresh() for part in self.parts))

    def share(self, first: int, step: int) -> PooledDraws:
        """Return every ``step``-th surface from ``first`` on; sets may have none of them."""
        rows, ends = self.order[first::step], np.cumsum([part.n_draws for part in self.parts])
        ordered = np.sort(rows)
        each = np.split(ordered, np.searchsorted(ordered, ends[:-1]))
        starts = ends - [part.n_draws for part in self.parts]
        parts = [
            part.some(own - start)
            for part, own, start in zip(self.parts, each, starts, strict=True)
        ]
        return PooledDraws(tuple(parts), self.member[first::step], np.searchsorted(ordered, rows))

    @override
    def alone(self, number: int) -> tuple[SurfaceDraws, int]:
        row = int(self.order[number])
        for part in self.parts:
            if row < part.n_draws:
                return part, row
            row -= part.n_draws
        raise IndexError(number)

    @override
    def rate(self, x: np.ndarray, coords: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate([part.rate(x, coords) for part in self.parts])[self.order]

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        return np.concatenate([part.bag_counts(bags) for part in self.parts])[self.order]

    @override
    def counted(self, bags: BagBlock) -> CountedDraws:
        return count_over_times([self], [bags])[0]

    @override
    def observed_factors(
        self, bags: BagBlock, drawn: np.ndarray, wholes: Sequence[Whole | None] | None = None
    ) -> np.ndarray:
        found, inverse = np.empty_like(drawn), np.empty_like(self.order)
        inverse[self.order] = np.arange(self.n_draws)  # row of each part's draw
        few, at = self.parts[0].condition.few(bags), 0
        for number, part in enumerate(self.parts):
            rows = inverse[at : at + part.n_draws]
            whole = None if wholes is None else wholes[number]
            found[rows] = part.condition.factors(bags, drawn[rows], few, whole)
            at += part.n_draws
        return found


@dataclass(frozen=True)
class CountedDraws:
    """Drawn rates, whose aggregates over one block are known.

    Attributes
    ----------
    draws : SurfaceDraws or PooledDraws
    counts : (n_draws, n_bag) float64
    wholes : tuple of Whole or None
        Of each set of hyperparameters; None where every pixel is visited.
    """

    draws: SurfaceDraws | PooledDraws
    counts: np.ndarray
    wholes: tuple[Whole | None, ...]

    @property
    def n_draws(self) -> int:
        """Number of surfaces."""
        return self.draws.n_draws

    @property
    def params(self) -> Any:
        """The likelihood's parameters (logarithms)."""
        return self.draws.params

    @override
    def bag_counts(self, bags: BagBlock) -> np.ndarray:
        del bags
        return self.counts

    @override
    def counted(self, bags: BagBlock) -> CountedDraws:
        del bags
        return self

    @override
    def observed_factors(self, bags: BagBlock, drawn: np.ndarray) -> np.ndarray:
        return self.draws.observed_factors(bags, drawn, self.wholes)


def count_over_times(
    draws: Sequence[SurfaceDraws | PooledDraws], blocks: Sequence[BagBlock]
) -> list[CountedDraws]:
    """Aggregate the rates of each time over the bags of its block.

    Parameters
    ----------
    draws : sequence of SurfaceDraws or PooledDraws
        Of several times, drawn together.
    blocks : sequence of BagBlock
        Of each time. Where all have the same pixels, each is evaluated once for all times.
    """
    parts = [list(own.parts) if isinstance(own, PooledDraws) else [own] for own in draws]
    found = [_over_times([own[number] for own in parts], blocks) for number in range(len(parts[0]))]
    counted = []
    for t, own in enumerate(draws):
        counts = np.concatenate([part[t][0] for part in found])
        counts = counts[own.order] if isinstance(own, PooledDraws) else counts
        counted.append(CountedDraws(own, counts, tuple(part[t][1] for part in found)))
    return counted


def _over_times(
    draws: Sequence[SurfaceDraws], blocks: Sequence[BagBlock], *, conditioned: bool = True
) -> list[tuple[np.ndarray, Whole | None]]:
    """Return the aggregates of one set of hyperparameters, (n_draws, n_bag), and the sums."""
    totals = [_Total(own, block, conditioned) for own, block in zip(draws, blocks, strict=True)]
    for start in range(0, max(block.n_pix for block in blocks), ROWS):
        for total in totals:
            total.add(start)
    return [total.result for total in totals]


class _Total:
    """The sums of one time."""

    def __init__(self, draws: SurfaceDraws, block: BagBlock, conditioned: bool) -> None:
        self._functions = draws.functions
        self._z = scaled_inputs(draws.fixed, block.x, block.coords, self._functions.dtype)
        self._p = bag_weights(draws.likelihood, block.weight, block.offsets, 1.0)
        self._bag = np.repeat(np.arange(block.n_bag), np.diff(block.offsets))
        self._sum = np.zeros((block.n_bag, draws.n_draws))
        condition, self._whole = draws.condition, None
        if conditioned and condition.thins(block):
            self._whole = WholeSums(condition.model, condition.params, block, draws.n_draws)

    def add(self, start: int) -> None:
        """Add the next pixels, if there are any."""
        rows = slice(start, start + ROWS)
        z, bag, surface = self._z[rows], self._bag[rows], self._functions.surface
        if not z.shape[0]:
            return
        if self._whole is None:
            f = self._functions.latent(z)
        else:
            f, about = self._functions.latent_and_about(z)
            self._whole.add(rows, about)
        value = find_link(surface.link).value(f)
        value *= self._p[rows, None].astype(value.dtype)
        add_by_bag(self._sum, bag, value)

    @property
    def result(self) -> tuple[np.ndarray, Whole | None]:
        """The aggregates (n_draws, n_bag) and the sums over all pixels."""
        whole = None if self._whole is None else self._whole.result
        return self._functions.surface.scale * self._sum.T, whole


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
