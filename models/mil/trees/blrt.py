r"""BLRT: bag-level randomized trees (Komárek & Somol 2018).

A tree sends a bag to the left where more than a share ``r`` of its instances have ``x_f > v``
(equation 2). Of ``K T T`` random rules ``(f, v, r)`` a node keeps the best; trees are grown to the
end, each on all bags (Algorithm 1), and their leaves are averaged. Trees are no sums over blocks of
bags: every one sees all of them, and each is grown by itself, from its own seed.
:mod:`models.mil.trees.bag_trees` holds what is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, Literal, NoReturn, Self

import numpy as np

from models.backend.blas import in_threads
from models.core.block import BagBlock, check_labels, refuse_missing
from models.core.errors import BagsError, ParameterError, UnsupportedError
from models.core.protocol import Arrays, State, Sweep, override
from models.likelihoods.probability import ClassDraws, Draws, ProbabilityDraws
from models.mil.data.classifier import Classifier
from models.mil.data.inner_folds import Settings
from models.mil.trees.forest import Grower, TreeMap, predict_tree
from models.mil.trees.value_bins import bag_ranges, bin_values
from models.training.parameters import Count

CRITERIA = {"gini": 0, "information_gain": 1, "variance": 2}
VARIANTS = {"relative": 0, "absolute": 1, "relic": 2}


@dataclass(kw_only=True, eq=False, repr=False)
class BLRT(Classifier):
    """Forest of bag-level randomized trees; labels bags, and bags alone.

    Parameters
    ----------
    n_trees : int
        Trees (the paper's M).
    n_features : int, optional
        Features tried at each node (K); the root of their number where not given.
    n_thresholds : int
        Values ``v`` drawn for each feature, and ratios ``r`` for each value (T).
    criterion : {"information_gain", "gini"}
        What a split of labels is scored by; a regression's splits lower the variance.
    variant : {"relative", "absolute", "relic"}
        What ``r`` is: a share of the bag's instances in [0, 1); a number of instances, of 1 to
        the node's largest bag, that there must be; "any" or "all" of them.
    task : {"binary", "multiclass", "regression"}
        Labels 0 and 1; labels of any number of classes; numbers.
    missing : bool
        Take NaN for unknown: shares are of the instances that are known, and bags without any go
        where the split is best. For ``Bags(..., allow_missing=True)``.
    categorical : list of int, optional
        Columns of ``x`` that hold categories: their inner condition is ``x_f = v``, with ``v`` one
        of the categories in the node.
    seed : int

    Attributes
    ----------
    bound_ : float
        Log probability of the training labels, nats (in regression, minus the sum of squares).
        Not a bound, and optimistic: fully grown trees fit their training labels.
    classes_ : (n_class,) float64
        The labels, ascending.
    feature_importances_ : (n_feat,) float64
        Share of each feature in the decrease of impurity, mean over the trees; adds up to 1.

    References
    ----------
    T. Komárek and P. Somol, Multiple Instance Learning with Bag-level Randomized Trees, ECML PKDD
    2018. G. Ruffo, Learning single and multiple instance decision trees for computer security
    applications, 2000 (RELIC).
    """

    kind = "blrt"
    about = "bag-level randomised trees: no scaling, no tuning; all instances in memory"
    source = "Komarek and Somol 2018"
    unlabelled: ClassVar[Mapping[str, tuple[str, ...]]] = {"task": ("multiclass", "regression")}
    sweep: ClassVar[Sweep] = "single"
    on_device: ClassVar[bool] = False
    predicts: ClassVar[tuple[str, ...]] = ("bags",)

    n_trees: Count = 500
    n_features: Count | None = None
    n_thresholds: Count = 8
    criterion: Literal["information_gain", "gini"] = "information_gain"
    variant: Literal["relative", "absolute", "relic"] = "relative"
    task: Literal["binary", "multiclass", "regression"] = "binary"
    missing: bool = False
    categorical: Sequence[int] | None = None
    seed: int = 0

    @override
    def tuning_settings(self, mean_size: float) -> Sequence[Settings]:
        del mean_size
        pairs = product(("information_gain", "gini"), ("relative", "absolute", "relic"))
        return [{"criterion": one, "variant": other} for one, other in pairs]

    @override
    def check_responses(self, y: np.ndarray) -> None:
        self._classes(y)

    @override
    def fit_once(  # type: ignore[override]
        self, bags: BagBlock, *, n_thread: int | None = None, tree_map: TreeMap | None = None
    ) -> Self:
        """Grow the forest.

        Parameters
        ----------
        bags : Bags
            Weights and coordinates are not used.
        n_thread : int, optional
            Trees grown at a time; all cores where not given. It does not change the result.
        tree_map : callable, optional
            ``tree_map(grow, seeds)`` returns ``grow(seed)`` for every seed, in any order: as Dask
            tasks, say. ``grow`` may be pickled; it carries all bags, so scatter it.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If a parameter has an impossible value.
        BagsError
            If a label does not fit the task, or a value is missing and ``missing`` is false.
        """
        self.check_params()
        self._check_columns(bags.x.shape[1])
        classes = self._classes(bags.y)
        grower, categories = self._grower(bags, classes)
        seeds = [
            int(s) for s in np.random.SeedSequence(self.seed).generate_state(self.n_trees, "u8")
        ]
        if tree_map is None:
            grown = list(in_threads(grower, seeds, n_thread))
        else:
            by_seed = {tree.seed: tree for tree in tree_map(grower, seeds)}
            grown = [by_seed[seed] for seed in seeds]

        params = {
            name: np.concatenate([tree.nodes[name] for tree in grown]) for name in grown[0].nodes
        }
        for f, known in categories.items():
            rows = params["feature"] == f
            params["value"][rows] = known[params["value"][rows].astype(int)]
        if self.task != "multiclass":
            column = 1 if self.task == "binary" else 0
            params["leaf"] = params["leaf"][:, column : column + 1]
        if self.task == "regression":
            params["leaf"] = bags.y.mean() + bags.y.std() * params["leaf"]
        n_node = [tree.nodes["feature"].size for tree in grown]
        params["tree"] = np.concatenate([[0], np.cumsum(n_node)]).astype(np.int64)
        fixed = {
            "classes": classes,
            "categorical": grower.n_category > 0,
            "variant": np.array(grower.variant),
        }
        self.state_ = State(params, fixed, step=self.n_trees)
        self.params_ = self.block_params(self.state_)
        leaves = np.split(params["leaf"], params["tree"][1:-1])
        pairs = zip(leaves, grown, strict=True)
        fitted = self._prediction(np.stack([leaf[tree.found_in] for leaf, tree in pairs]))
        if isinstance(fitted, ProbabilityDraws | ClassDraws):
            bound = float(fitted.log_density(bags.y).sum())
        else:
            bound = -float(((fitted.mean - bags.y) ** 2).sum())
        self.history_, self.converged_ = [{"epoch": 1, "bound": bound}], True
        return self

    def _check_columns(self, n_feat: int) -> None:
        wrong = None
        if self.n_features is not None and self.n_features > n_feat:
            wrong = f"n_features: {self.n_features}, but the bags have {n_feat}; give no more"
        for column in self.categorical or ():
            if column != int(column) or not 0 <= column < n_feat:
                wrong = f"categorical: {column} is not a column; give 0 to {n_feat - 1}"
        if wrong:
            raise ParameterError(wrong)

    def _classes(self, y: np.ndarray) -> np.ndarray:
        classes = np.zeros(0) if self.task == "regression" else np.unique(y)
        if self.task == "binary":
            check_labels(y)
        elif y.size == 0 or (y == y[0]).all():
            msg = f"every bag's y is {y[0]:g}; there is nothing to learn" if y.size else "no bags"
            raise BagsError(msg)
        return classes

    def _grower(self, bags: BagBlock, classes: np.ndarray) -> tuple[Grower, dict[int, np.ndarray]]:
        n_feat = bags.x.shape[1]
        x = self._rows(bags)
        n_category = np.zeros(n_feat, np.int64)
        categories = {}
        for f in self.categorical or ():
            known = ~np.isnan(x[f])
            categories[f], x[f, known] = np.unique(x[f, known], return_inverse=True)
            n_category[f] = categories[f].size
        regression = self.task == "regression"
        codes, edges = bin_values(x)
        grower = Grower(
            x=x,
            offsets=bags.offsets,
            label=np.searchsorted(classes, bags.y),
            # In deviations about the mean: sums of squares keep their digits.
            y=(bags.y - bags.y.mean()) / bags.y.std() if regression else bags.y,
            n_class=2 if regression else classes.size,
            criterion=CRITERIA["variance" if regression else self.criterion],
            variant=VARIANTS[self.variant],
            n_category=n_category,
            has_missing=bool(np.isnan(x).any()),
            codes=codes,
            edges=edges,
            ranges=bag_ranges(x, bags.offsets),
            n_try=self.n_features or max(round(np.sqrt(n_feat)), 1),
            n_value=self.n_thresholds,
        )
        return grower, categories

    def _rows(self, bags: BagBlock) -> np.ndarray:
        """Return the instances with a feature in a row, or raise BagsError."""
        if not self.missing:
            refuse_missing(bags)
        return np.array(bags.x.T, dtype=np.float64, order="C")

    @override
    def block_params(self, state: State) -> Arrays:
        return {**state.params, **state.fixed}

    def bag_distribution(  # type: ignore[override]
        self, bags: BagBlock, *, n_thread: int | None = None
    ) -> ProbabilityDraws | ClassDraws | Draws:
        """Return the prediction of each tree for each bag.

        Parameters
        ----------
        bags : Bags
            Responses are not used.
        n_thread : int, optional
            All cores where not given. It does not change the result.

        Returns
        -------
        ProbabilityDraws
            That the label is 1: the mean over the trees is the paper's score. With
            ``task="multiclass"`` ClassDraws, with "regression" Draws of the response.
        """
        params = self.fitted_params()
        n_feat = params["categorical"].size
        if bags.x.shape[1] != n_feat:
            msg = (
                f"x has {bags.x.shape[1]} covariates; the model was fitted with {n_feat} covariates"
            )
            raise BagsError(msg)
        x = self._rows(bags)
        predict = partial(predict_tree, params, x, bags.offsets, bool(np.isnan(x).any()))
        n_tree = params["tree"].size - 1
        return self._prediction(np.stack(list(in_threads(predict, range(n_tree), n_thread))))

    def _prediction(self, draws: np.ndarray) -> ProbabilityDraws | ClassDraws | Draws:
        """Return the prediction of leaves: (n_trees, n_bag, n_out)."""
        if self.task == "multiclass":
            return ClassDraws(draws, self.classes_)
        return (Draws if self.task == "regression" else ProbabilityDraws)(draws[..., 0])

    def predict_pixels(self, x: np.ndarray, coords: np.ndarray | None = None) -> NoReturn:
        """Raise UnsupportedError: rules count over bags and cannot predict single instances."""
        del x, coords
        msg = "BLRT predicts bags alone; use predict_bags, or PsiVGPMIL or VWSGP for pixels"
        raise UnsupportedError(msg)

    @property
    @override
    def learns(self) -> Literal["two classes", "classes", "numbers"]:
        tasks: dict[str, Literal["two classes", "classes", "numbers"]] = {
            "multiclass": "classes",
            "regression": "numbers",
        }
        return tasks.get(self.task, "two classes")

    @property
    @override
    def allows_missing(self) -> bool:
        return self.missing

    @override
    def numbered_classes(self, state: State) -> np.ndarray:
        return state.fixed["classes"]

    @override
    def n_features_of(self, state: State) -> int:
        return int(state.fixed["categorical"].size)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each feature in the decrease of impurity: (n_feat,)."""
        params = self.fitted_params()
        n_tree, n_feat = params["tree"].size - 1, params["categorical"].size
        of_tree = np.repeat(np.arange(n_tree), np.diff(params["tree"]))
        splits = params["feature"] >= 0
        by_tree = np.zeros((n_tree, n_feat))
        np.add.at(by_tree, (of_tree[splits], params["feature"][splits]), params["gain"][splits])
        total = by_tree.sum(axis=1, keepdims=True)
        shares = by_tree / np.where(total > 0, total, 1.0)
        return shares.sum(axis=0) / max(shares.sum(), np.finfo(float).tiny)

    def ratio_histogram(self, bins: Any = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return how often each ``r`` was learnt: the paper's figure 2.

        Parameters
        ----------
        bins : int or array_like
            As of ``numpy.histogram``, over [0, 1]; with ``variant="absolute"`` not read: one bin
            for each number of instances.

        Returns
        -------
        counts, edges : arrays
            As ``numpy.histogram`` returns them.
        """
        params = self.fitted_params()
        ratio = params["ratio"][params["feature"] >= 0]
        if params["variant"] == VARIANTS["absolute"]:
            number = ratio + 0.5
            return np.histogram(number, np.arange(0.5, number.max(initial=1.0) + 1.0))
        return np.histogram(ratio, bins, range=(0.0, 1.0))
