"""Where the inducing variables of each term of space and time stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.aggregate.vbagg import CLIMB_PIXELS
from models.backend.blas import one_openmp_thread
from models.core.protocol import Arrays, Summary
from models.core.thinning import thin
from models.gp.area_kernel import Areas
from models.gp.inducing_points import (
    LARGEST_NODES,
    LEAST_NODES,
    MOST_NODES,
    choose_inducing_points,
    shared_points,
    simple_nodes,
)
from models.gp.kernel_terms import Term, split_terms
from models.gp.kernels import Constant as Level
from models.gp.kernels import Kernel, Linear
from models.gp.regression_kernels import Ridge
from models.temporal.markov import MarkovKernel, Season, TimeSum
from models.temporal.periods import PeriodSummary
from models.temporal.time_text import STILL

LEAST_CLIMB = 10  # pixels of a bag, where bags are many


@dataclass(frozen=True)
class Points:
    """Most inducing variables of terms of two and more dimensions.

    Attributes
    ----------
    still : int
        Of all that hold still, together.
    moving, season : int
        Of each that drifts, and of each that has a season.
    """

    still: int
    moving: int
    season: int


def place_terms(
    whole: Kernel,
    times: np.ndarray,
    kernels: Sequence[MarkovKernel],
    sample: PeriodSummary,
    z: np.ndarray,
    points: Points,
    rng: np.random.Generator,
) -> tuple[np.ndarray, Arrays]:
    """Place the inducing variables of each term: what moves has fewer, for it has more states.

    Those of terms of space are averages over areas, or over groups of neighbouring areas where
    areas are more than points: what counts tell of a field of any length-scale. Other terms of two
    and more dimensions have points.

    Parameters
    ----------
    whole : Kernel
    times : (n_split,) int
        Number of the time of each of its split terms.
    kernels : sequence of MarkovKernel
    sample : PeriodSummary
    z : (n_sample, n_dim) float64
        Scaled inputs of the sample.
    points : Points
    rng : numpy Generator

    Returns
    -------
    w : (n_node, n_dim) float64
    dict of arrays
        As of :class:`models.gp.inducing_points.Inducing`, ``value_time`` (n_value,), the number of
        the time of each, and :func:`own_values`.
    """
    terms = list(split_terms(whole))
    groups: list[Nodes | None] = [_own_nodes(term, z, sample.n_area) for term in terms]
    wide = [k for k, own in enumerate(groups) if own is None]
    still = [k for k in wide if times[k] == STILL or kernels[times[k]].still]
    shared = shared_points([terms[k] for k in still], points.still) if still else []
    count = dict(zip(still, shared, strict=True))
    for k in wide:
        if k not in count:
            count[k] = points.season if _has_season(kernels[times[k]]) else points.moving
        first, last = terms[k].columns
        own = np.zeros_like(z)
        own[:, first:last] = z[:, first:last]
        if getattr(terms[k].kernel, "spatial", False) and sample.bag is not None:
            groups[k] = _averages(own, sample, count[k], rng)
        else:
            groups[k] = Nodes.points(choose_inducing_points(own, count[k], rng))
    placed = [own for own in groups if own is not None]
    sizes = np.array([own.w.shape[0] // own.n_node for own in placed])
    return np.concatenate([own.w for own in placed]), {
        "term_values": sizes,
        "term_nodes": np.array([own.n_node for own in placed]),
        "node_share": np.concatenate([own.share for own in placed]),
        "term_of": np.arange(sizes.size),
        "value_time": np.repeat(times, sizes),
        **({} if sample.unions else own_values(terms, sizes)),
    }


def own_values(terms: Sequence[Term], sizes: np.ndarray) -> Arrays:
    """Return the places of the effects of areas, where a pixel has one of them alone.

    Parameters
    ----------
    terms : sequence of Term
    sizes : (n_term,) int64
        Inducing variables of each.

    Returns
    -------
    dict of arrays
        ``own`` (2,), the first place and the one after the last; empty where the kernel has none,
        or several for each area.
    """
    ends = np.cumsum([0, *sizes.tolist()])
    of = [k for k, term in enumerate(terms) if isinstance(term.kernel, Areas)]
    return {"own": ends[of[0] : of[0] + 2]} if len(of) == 1 else {}


@dataclass(frozen=True)
class Nodes:
    """What the inducing variables of a term are made of.

    Attributes
    ----------
    w : (n_value * n_node, n_dim) float64
    n_node : int
        Of each inducing variable.
    share : (n_value * n_node,) float64
        Of each in its average.
    """

    w: np.ndarray
    n_node: int
    share: np.ndarray

    @classmethod
    def points(cls, w: np.ndarray) -> Nodes:
        """Return nodes that are inducing variables themselves."""
        return cls(w, 1, np.ones(w.shape[0]))


def _averages(z: np.ndarray, sample: PeriodSummary, count: int, rng: np.random.Generator) -> Nodes:
    """Return nodes of the averages over areas, or over ``count`` groups of them.

    Parameters
    ----------
    z : (n_sample, n_dim) float64
        Scaled inputs, zero where the term does not look.
    sample : PeriodSummary
    count : int
    rng : numpy Generator
    """
    assert sample.bag is not None
    weight = np.ones(z.shape[0]) if sample.pixel_weight is None else sample.pixel_weight
    areas, group = np.unique(sample.bag % sample.n_area, return_inverse=True)
    if areas.size > count:
        mass = np.maximum(np.bincount(group, weight), np.finfo(float).tiny)
        centre = np.stack([np.bincount(group, weight * column) / mass for column in z.T], axis=1)
        seed = int(rng.integers(2**31))
        count = min(count, np.unique(centre, axis=0).shape[0])
        from sklearn.cluster import KMeans

        with one_openmp_thread():
            group = KMeans(count, n_init=1, random_state=seed).fit_predict(centre)[group]
    order = np.argsort(group, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(group))])
    n_group = offsets.size - 1
    n_node = int(np.clip(MOST_NODES // n_group, LEAST_NODES, LARGEST_NODES))
    chosen = thin(z[order], weight[order], offsets, n_node, rng)
    w, share = np.zeros((n_group, n_node, z.shape[1])), np.zeros((n_group, n_node))
    sizes = np.diff(chosen.offsets)
    row = np.repeat(np.arange(n_group), sizes)
    column = np.arange(row.size) - np.repeat(chosen.offsets[:-1], sizes)
    w[row, column], share[row, column] = z[order][chosen.pixel], chosen.weight
    few = (
        np.arange(n_node) >= sizes[:, None]
    )  # what is missing stands on the first, without a share
    w[few] = np.repeat(w[:, :1], n_node, axis=1)[few]
    total = share.sum(axis=1, keepdims=True)
    even = ~few / sizes[:, None]
    share = np.where(total > 0, share / np.where(total > 0, total, 1.0), even)
    return Nodes(w.reshape(-1, z.shape[1]), n_node, share.ravel())


def constant_values(whole: Kernel, fixed: Arrays) -> np.ndarray:
    """Return the inducing values of the function 1, had by one term alone: (n_value,).

    A term that holds still, where there is one; zeros where all are linear.

    Parameters
    ----------
    whole : Kernel
    fixed : dict of arrays
        As :func:`place_terms` returns them.
    """
    ends = np.cumsum([0, *fixed["term_values"].tolist()])
    best, chosen = -1, None
    for number, term in enumerate(split_terms(whole)):
        if isinstance(term.kernel, Linear | Ridge):
            continue
        still = fixed["value_time"][ends[number]] == STILL
        rank = 4 * still + 2 * isinstance(term.kernel, Level) + (not isinstance(term.kernel, Areas))
        if rank >= best:
            best, chosen = rank, slice(ends[number], ends[number + 1])
    ones = np.zeros(ends[-1])
    if chosen is not None:
        ones[chosen] = 1.0
    return ones


def _own_nodes(term: Term, z: np.ndarray, n_area: int) -> Nodes | None:
    """Return the nodes of a term of areas, or of a linear or one-dimensional one; else None."""
    if isinstance(term.kernel, Areas):
        nodes = np.zeros((n_area, z.shape[1]))
        nodes[:, term.kernel.columns[0]] = np.arange(n_area)
        return Nodes.points(nodes)
    found = simple_nodes(term, z)
    return None if found is None else Nodes.points(found)


def climb_pixels(sample: Summary) -> int:
    """Return the most pixels of a bag that the climb reads; 0 for all."""
    cap = max(LEAST_CLIMB, CLIMB_PIXELS // sample.n_bag)
    return 0 if sample.n_pix <= 1.5 * cap * sample.n_bag else cap


def _has_season(kernel: MarkovKernel) -> bool:
    parts = kernel.parts if isinstance(kernel, TimeSum) else (kernel,)
    return any(isinstance(part, Season) for part in parts)
