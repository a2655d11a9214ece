"""Where the inducing variables stand: k-means on a sample of pixels, or averages of areas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.backend.blas import one_openmp_thread
from models.core.protocol import Arrays, Summary
from models.gp.kernel_terms import Term, split_terms
from models.gp.kernels import Constant, Kernel, Linear
from models.gp.regression_kernels import Ridge

POINTS = 200  # of the whole function, where none are given
N_LINE = 12  # inducing points of a term of one dimension
MOST_AREAS = 400  # with averages of their own; points, where there are more
MOST_NODES = 256  # of all averages
LEAST_NODES, LARGEST_NODES = 2, 8  # of one average


def choose_inducing_points(z: np.ndarray, n_inducing: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``n_inducing`` points: k-means++ seeds, refined by mini-batch k-means.

    Parameters
    ----------
    z : (n_sample, n_dim) float64
        Scaled inputs of a sample of pixels.
    n_inducing : int
        Wanted number; there are never more than distinct rows of ``z``.
    rng : numpy Generator

    Returns
    -------
    (n_ind, n_dim) float64
    """
    distinct = np.unique(z, axis=0)
    if distinct.shape[0] <= n_inducing:
        return distinct
    from sklearn.cluster import MiniBatchKMeans, kmeans_plusplus  # starts slowly

    seed = int(rng.integers(2**31))
    with one_openmp_thread():
        centres, _ = kmeans_plusplus(distinct, n_inducing, random_state=seed)
        means = MiniBatchKMeans(
            n_inducing, init=centres, n_init=1, batch_size=4096, max_iter=10, random_state=seed
        ).fit(distinct)
    return np.asarray(means.cluster_centers_, dtype=np.float64)


@dataclass(frozen=True)
class Inducing:
    """The inducing variables of a kernel's terms, see :mod:`models.gp.kernel_terms`.

    Attributes
    ----------
    w : (n_node, n_dim) float64
        Points that they are made of.
    fixed : dict of arrays
        ``term_values term_nodes node_share term_of``; and ``node_bag`` (n_node,), the bag that a
        node stands in, -1 for points.
    """

    w: np.ndarray
    fixed: Arrays

    @property
    def n_value(self) -> int:
        """Number of inducing variables."""
        return int(self.fixed["term_values"].sum())


def place_inducing(
    kernel: Kernel,
    z: np.ndarray,
    sample: Summary,
    n_inducing: int | None,
    rng: np.random.Generator,
    nodes: int = MOST_NODES,
) -> Inducing:
    """Place the inducing variables of each term.

    Linear terms have their coefficients, terms of one dimension a line of points. What is left
    shares the averages of the training areas; or, if these are too many or ``n_inducing`` is
    given, each term has k-means points among its own columns.

    Parameters
    ----------
    kernel : Kernel
    z : (n_sample, n_dim) float64
        Scaled inputs of the sample.
    sample : Summary
    n_inducing : int or None
        Points of all terms of two and more dimensions; None for averages of areas, where possible.
    rng : numpy Generator
    nodes : int
        Nodes of all averages together, at most.
    """
    split = list(split_terms(kernel))
    simple = [simple_nodes(term, z) for term in split]
    wide = [number for number, own in enumerate(simple) if own is None]
    groups: list[tuple[np.ndarray, int, np.ndarray, np.ndarray]] = []
    term_of = np.full(len(split), -1)
    for number, own in enumerate(simple):
        if own is not None:
            term_of[number] = len(groups)
            groups.append((own, 1, np.ones(own.shape[0]), np.full(own.shape[0], -1)))
    averages = None if n_inducing is not None or not wide else area_nodes(z, sample, nodes)
    if averages is not None:
        term_of[wide] = len(groups)
        groups.append(averages)
    elif wide:
        shares = shared_points([split[number] for number in wide], n_inducing or MOST_AREAS)
        for number, wanted in zip(wide, shares, strict=True):
            term_of[number] = len(groups)
            first, last = split[number].columns
            own = np.zeros((0, z.shape[1]))
            if last > first:
                points = choose_inducing_points(z[:, first:last], wanted, rng)
                own = np.zeros((points.shape[0], z.shape[1]))
                own[:, first:last] = points
            groups.append((own, 1, np.ones(own.shape[0]), np.full(own.shape[0], -1)))
    fixed = {
        "term_values": np.array([own.shape[0] // n_node for own, n_node, _, _ in groups]),
        "term_nodes": np.array([n_node for _, n_node, _, _ in groups]),
        "node_share": np.concatenate([share for _, _, share, _ in groups]),
        "node_bag": np.concatenate([bag for _, _, _, bag in groups]),
        "term_of": term_of,
    }
    return Inducing(np.concatenate([own for own, _, _, _ in groups]), fixed)


def simple_nodes(term: Term, z: np.ndarray) -> np.ndarray | None:
    """Return the nodes of a linear or one-dimensional term; None for others."""
    first, last = term.columns
    if isinstance(term.kernel, Constant):
        return np.zeros((1, z.shape[1]))
    if isinstance(term.kernel, Linear | Ridge):
        nodes = np.zeros((last - first, z.shape[1]))
        nodes[:, first:last] = np.eye(last - first)
        return nodes
    if last - first != 1:
        return None
    values = np.unique(z[:, first])
    if values.size > N_LINE:
        values = np.linspace(values[0], values[-1], N_LINE)
    nodes = np.zeros((values.size, z.shape[1]))
    nodes[:, first] = values
    return nodes


def shared_points(terms: list[Term], n_inducing: int) -> list[int]:
    """Share points between terms; space, where ranges are short, gets twice as many."""
    spatial = np.array([2.0 if getattr(term.kernel, "spatial", False) else 1.0 for term in terms])
    return np.maximum(1, np.round(n_inducing * spatial / spatial.sum())).astype(int).tolist()


def area_nodes(
    z: np.ndarray, sample: Summary, most: int
) -> tuple[np.ndarray, int, np.ndarray, np.ndarray] | None:
    """Choose nodes of each training area, pixels of the sample from strata of equal weight.

    Returns
    -------
    w : (n_area * n_node, n_dim);  n_node : int;  share, bag : (n_area * n_node,)
        Or None where the areas are too many, or the sample misses some.
    """
    if sample.bag is None or sample.pixel_weight is None:
        return None
    bags, which = np.unique(sample.bag, return_inverse=True)
    if bags.size < sample.n_bag or bags.size > MOST_AREAS:
        return None
    n_node = int(np.clip(most // bags.size, LEAST_NODES, LARGEST_NODES))
    order = np.argsort(which, kind="stable")
    edges = np.searchsorted(which[order], np.arange(bags.size + 1))
    chosen = np.empty((bags.size, n_node), dtype=np.int64)
    for number in range(bags.size):
        own = order[edges[number] : edges[number + 1]]
        weight = sample.pixel_weight[own]
        weight = weight if weight.sum() > 0 else np.ones(own.size)
        aim = (np.arange(n_node) + 0.5) / n_node * weight.sum()
        at = np.searchsorted(np.cumsum(weight), aim, side="right")
        chosen[number] = own[np.minimum(at, own.size - 1)]
    share = np.full(chosen.size, 1.0 / n_node)
    return z[chosen.ravel()], n_node, share, np.repeat(bags, n_node)
