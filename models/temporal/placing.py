"""Where the inducing variables of each term of space and time stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.aggregate.vbagg import CLIMB_PIXELS
from models.core.protocol import Arrays, Summary
from models.gp.area_kernel import Areas
from models.gp.inducing_points import choose_inducing_points, shared_points, simple_nodes
from models.gp.kernel_terms import Term, split_terms
from models.gp.kernels import Constant as Level
from models.gp.kernels import Kernel, Linear
from models.gp.regression_kernels import Ridge
from models.temporal.markov import MarkovKernel, Season, TimeSum
from models.temporal.time_text import STILL

LEAST_CLIMB = 10  # pixels of a bag, where bags are many


@dataclass(frozen=True)
class Points:
    """Points of terms of two and more dimensions.

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
    n_area: int,
    z: np.ndarray,
    points: Points,
    rng: np.random.Generator,
) -> tuple[np.ndarray, Arrays]:
    """Place the inducing variables of each term: what moves has fewer, for it has more states.

    Parameters
    ----------
    whole : Kernel
    times : (n_split,) int
        Number of the time of each of its split terms.
    kernels : sequence of MarkovKernel
    n_area : int
    z : (n_sample, n_dim) float64
        Scaled inputs of a sample.
    points : Points
    rng : numpy Generator

    Returns
    -------
    w : (n_value, n_dim) float64
    dict of arrays
        As of :class:`models.gp.inducing_points.Inducing`, and ``value_time`` (n_value,), the number
        of the time of each.
    """
    terms = list(split_terms(whole))
    nodes: list[np.ndarray] = [_own_nodes(term, z, n_area) for term in terms]
    wide = [k for k, own in enumerate(nodes) if not own.size]
    still = [k for k in wide if times[k] == STILL or kernels[times[k]].still]
    shared = shared_points([terms[k] for k in still], points.still) if still else []
    count = dict(zip(still, shared, strict=True))
    for k in wide:
        if k not in count:
            count[k] = points.season if _has_season(kernels[times[k]]) else points.moving
        first, last = terms[k].columns
        own = choose_inducing_points(z[:, first:last], count[k], rng)
        nodes[k] = np.zeros((own.shape[0], z.shape[1]))
        nodes[k][:, first:last] = own
    sizes = np.array([own.shape[0] for own in nodes])
    return np.concatenate(nodes), {
        "term_values": sizes,
        "term_nodes": np.ones(sizes.size, dtype=np.int64),
        "node_share": np.ones(sizes.sum()),
        "term_of": np.arange(sizes.size),
        "value_time": np.repeat(times, sizes),
    }


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


def _own_nodes(term: Term, z: np.ndarray, n_area: int) -> np.ndarray:
    """Return the nodes of a term of areas, or of a linear or one-dimensional one; else none."""
    if isinstance(term.kernel, Areas):
        nodes = np.zeros((n_area, z.shape[1]))
        nodes[:, term.kernel.columns[0]] = np.arange(n_area)
        return nodes
    found = simple_nodes(term, z)
    return np.zeros((0, z.shape[1])) if found is None else found


def climb_pixels(sample: Summary) -> int:
    """Return the most pixels of a bag that the climb reads; 0 for all."""
    cap = max(LEAST_CLIMB, CLIMB_PIXELS // sample.n_bag)
    return 0 if sample.n_pix <= 1.5 * cap * sample.n_bag else cap


def _has_season(kernel: MarkovKernel) -> bool:
    parts = kernel.parts if isinstance(kernel, TimeSum) else (kernel,)
    return any(isinstance(part, Season) for part in parts)
