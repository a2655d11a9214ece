"""What the classifiers share: the methods that users call, whatever shape their bags have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import RegressorTags, Tags
from sklearn.utils.metaestimators import available_if

from models.backend.arrays import as_array
from models.core.block import BagBlock, Bags, check_labels
from models.core.errors import BagsError, UnsupportedError
from models.core.protocol import override
from models.gp.kernel_text import parse_kernel
from models.mil.data.bags_in import GivenBags, is_list_of_bags, read_bags
from models.mil.data.inner_fits import InnerFits
from models.mil.data.inner_folds import BagsFitter, fit_with_inner_folds
from models.mil.data.labels_in import (
    classes_from_json,
    classes_in,
    classes_to_json,
    codes_of,
    labels_of,
    numbers_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from models.core.protocol import Arrays, State, Summary
    from models.likelihoods.prediction import Prediction
    from models.likelihoods.probability import Probability
    from models.training.loop import Training


def _has_classes(model: Classifier) -> bool:
    if model.learns == "numbers":
        msg = f"this {type(model).__name__} learns numbers, not classes; use predict"
        raise AttributeError(msg)
    return True


@dataclass(kw_only=True, eq=False, repr=False)
class Classifier(ClassifierMixin, InnerFits, BaseEstimator):
    """Base of the models of labelled bags (multiple-instance classification).

    A scikit-learn classifier of bags. ``X`` is rows with the id of its bag for each,
    ``fit(X, y, bags)``; or a list with one array a bag, ``fit([x0, x1, ...], y)``; or
    :class:`models.core.block.Bags`, ``fit(bags)``. See :mod:`models.mil.data.bags_in`. Rows without
    ``bags`` are bags of one instance each.

    Inside, a bag's ``y`` is 1 where something in it is positive, else 0. ``weight`` is not used: a
    pixel is an instance, whoever lives there.

    Attributes
    ----------
    classes_ : (n_class,) array
        The labels, ascending. Of two, ``classes_[1]`` is the positive class: a bag has it because
        of something in it. Two words such as ``no`` and ``Yes`` are in that order whatever their
        letters: see :func:`models.mil.data.labels_in.classes_in`.
    n_features_in_ : int
        Number of columns of ``X``.
    feature_names_in_ : (n_feat,) array of str
        Their names, where ``X`` was a data frame.
    """

    responses: ClassVar[Literal["counts", "labels"]] = "labels"

    def fit(  # type: ignore[override]
        self,
        X: Any,
        y: Any = None,
        bags: Any = None,
        *,
        coords: Any = None,
        n_thread: int | None = None,
        **how: Any,
    ) -> Self:
        """Fit to labelled bags in memory.

        Parameters
        ----------
        X : (n_row, n_feat) array, data frame or sparse matrix; list of such by bag; or Bags
            Sparse matrices become dense. NaN is allowed where the model allows it (``BLRT``).
        y : array_like, Series or dict
            Labels of any kind, of two classes: one a row, the same in all rows of a bag; or one a
            bag, in the order in which the bags first appear. Where the rows of bags are mixed, that
            order is not clear: give a dict or a Series by bag id. None with ``Bags``.
        bags : (n_row,) array_like, optional
            Id of the bag of each row, of any type, in any order. The fit depends on the order of
            the ids and of the rows inside each bag, not on how rows of different bags are mixed.
            Without ids each row is a bag.
        coords : (n_row, n_axis) array_like, or list of such by bag, km, optional
            Positions, for kernels with a spatial part.
        n_thread : int, optional
            Threads; all cores where not given. It does not change the result.
        **how
            What a model alone takes.

        Returns
        -------
        self

        Raises
        ------
        BagsError
            If ``X``, ``y`` or ``bags`` is unusable, or all labels are the same.
        """
        self.check_params()
        if isinstance(X, BagBlock):
            _refuse_beside_bags(y=y, bags=bags, coords=coords)
            block, classes, of_rows = X, None, False
            self.n_features_in_ = X.x.shape[1]
            self.__dict__.pop("feature_names_in_", None)
        else:
            given = self._read(X, bags, coords, reset=True)
            if y is None:
                msg = f"{type(self).__name__} requires y to be passed, but the target y is None"
                raise BagsError(msg)
            classes, numbers = self._numbers(y, given)
            of_rows = bags is None and not given.listed
            x = given.dense()
            block = Bags(
                x, given.offsets, given.as_stored(numbers), None, given.coords, allow_missing=True
            )
        self.fit_bags(block, n_thread=n_thread, **how)
        self._named_classes, self._of_rows = classes, of_rows
        return self

    def fit_bags(self, bags: BagBlock, *, n_thread: int | None = None, **how: Any) -> Self:
        """Fit to bags whose ``y`` are the numbers that the model learns from: 0 and 1.

        Parameters
        ----------
        bags : Bags
        n_thread : int, optional
        **how
            As of :meth:`fit`.
        """
        self.check_params()
        self.check_responses(bags.y)
        fit_with_inner_folds(self, BagsFitter(bags, {"n_thread": n_thread, **how}))
        return self

    @property
    def learns(self) -> Literal["two classes", "classes", "numbers"]:
        """What ``y`` is: of two classes, of any number of them, or numbers (a regression)."""
        return "two classes"

    @property
    def allows_missing(self) -> bool:
        """Whether ``X`` may hold NaN."""
        return False

    @property
    def classes_(self) -> np.ndarray:
        """The labels; the last of two is the positive class. Of a regression, none."""
        state = self.fitted_state()
        if self.learns == "numbers":
            return np.zeros(0)
        named = getattr(self, "_named_classes", None)
        return self.numbered_classes(state) if named is None else np.asarray(named)

    def numbered_classes(self, state: State) -> np.ndarray:
        """Return the labels that the bags' numbers were, where a user named no others."""
        del state
        return np.array([0.0, 1.0])

    # -- predictions of bags -------------------------------------------------------------------

    def predict(self, X: Any, bags: Any = None, coords: Any = None) -> np.ndarray:
        """Return the most probable label of each bag; of a regression, the expected response.

        Parameters
        ----------
        X, bags, coords
            As of :meth:`fit`. A model that was fitted to bags wants ``bags`` with rows.

        Returns
        -------
        (n_bag,) array
            In the order in which the bags first appear: that of :func:`models.bag_ids`.
        """
        p = self._means(X, bags, coords)
        if self.learns == "numbers":
            return p
        return self.classes_[p.argmax(axis=1) if p.ndim == 2 else (p > 0.5).astype(int)]

    @available_if(_has_classes)
    def predict_proba(self, X: Any, bags: Any = None, coords: Any = None) -> np.ndarray:
        """Return the probability of each label: (n_bag, n_class), columns as ``classes_``.

        Parameters and order as of :meth:`predict`. :meth:`predict_bags` tells how sure it is.
        """
        return _by_class(self._means(X, bags, coords))

    @available_if(_has_classes)
    def predict_log_proba(self, X: Any, bags: Any = None, coords: Any = None) -> np.ndarray:
        """Return the logarithm of :meth:`predict_proba`: (n_bag, n_class), nats."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, bags, coords))

    @available_if(_has_classes)
    def decision_function(self, X: Any, bags: Any = None, coords: Any = None) -> np.ndarray:
        """Return the log odds of the positive class, nats: (n_bag,), above 0 where it is predicted.

        Of more than two classes their log probabilities: (n_bag, n_class).
        """
        p = self.predict_proba(X, bags, coords)
        logs = np.log(np.clip(p, np.finfo(float).tiny, None))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def score(
        self, X: Any, y: Any = None, bags: Any = None, sample_weight: Any = None, coords: Any = None
    ) -> float:
        """Return the accuracy over bags; of a regression, the coefficient of determination.

        Parameters
        ----------
        X, y, bags, coords
            As of :meth:`fit`.
        sample_weight : array_like, Series or dict, optional
            Of each bag, given as ``y`` may be.
        """
        if isinstance(X, BagBlock):
            _refuse_beside_bags(y=y, bags=bags, coords=coords)
            true = X.y if self.learns == "numbers" else self.classes_[X.y.astype(int)]
            weight = sample_weight
        else:
            given = self._read(X, bags, coords, reset=False)
            read = numbers_of if self.learns == "numbers" else labels_of
            true = read(y, given)
            weight = (
                None if sample_weight is None else given.of_bags(sample_weight, "sample_weight")
            )
        measure = r2_score if self.learns == "numbers" else accuracy_score
        return float(measure(true, self.predict(X, bags, coords), sample_weight=weight))

    # -- predictions of instances --------------------------------------------------------------

    def predict_instance_proba(self, X: Any, coords: Any = None) -> Any:
        """Return the probability of each label for each instance, as if it were a bag by itself.

        Parameters
        ----------
        X : (n_row, n_feat) array, data frame or sparse matrix, or list of such by bag
        coords : positions, km, optional

        Returns
        -------
        (n_row, 2) array; of a list of bags, a list of such

        Raises
        ------
        UnsupportedError
            If the model labels bags alone.
        """
        given = self._read(X, None, coords, reset=False, instances=True)
        p = _by_class(self._instance_means(given))
        return np.split(p, given.offsets[1:-1]) if given.listed else p

    def predict_instances(self, X: Any, coords: Any = None) -> Any:
        """Return the most probable label of each instance: (n_row,), or a list of such by bag."""
        p = self.predict_instance_proba(X, coords)
        if isinstance(p, list):
            return [self.classes_[each.argmax(axis=1)] for each in p]
        return self.classes_[p.argmax(axis=1)]

    def top_instances(
        self, X: Any, bags: Any = None, n: int = 1, coords: Any = None
    ) -> pd.DataFrame:
        """Return the instances of each bag that are most probably positive.

        Parameters
        ----------
        X, bags, coords
            As of :meth:`predict`.
        n : int
            Instances a bag; fewer of bags that hold fewer.

        Returns
        -------
        DataFrame
            ``bag`` (its id, or its place in a list), ``rank`` (from 1), ``row`` (of ``X``; of a
            list of bags, of the bag), ``probability``; bags as of :meth:`predict`.

        Raises
        ------
        UnsupportedError
            If the model labels bags alone.
        """
        import pandas as pd

        if not n >= 1:
            msg = f"n is {n}; give the number of instances a bag, at least 1"
            raise BagsError(msg)
        given = self._read(X, bags, coords, reset=False)
        p = self._instance_means(given)
        at: list[np.ndarray] = []
        for bag in given.shown:
            first, stop = given.offsets[bag : bag + 2]
            at.append(first + np.argsort(-p[first:stop], kind="stable")[:n])
        place = np.concatenate(at)
        held = np.repeat(given.shown, [each.size for each in at])
        row = given.rows[place] - (given.offsets[held] if given.listed else 0)
        rank = np.concatenate([np.arange(1, each.size + 1) for each in at])
        return pd.DataFrame(
            {"bag": given.ids[held], "rank": rank, "row": row, "probability": p[place]}
        )

    # -- what scikit-learn asks ----------------------------------------------------------------

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.allows_missing
        tags.classifier_tags.multi_class = self.learns == "classes"
        if self.learns == "numbers":
            tags.estimator_type, tags.classifier_tags = "regressor", None
            tags.regressor_tags = RegressorTags()
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "state_")

    @override
    def adopt(self, training: Training) -> Self:
        super().adopt(training)
        self.n_features_in_ = self.n_features_of(self.state_)
        return self

    def n_features_of(self, state: State) -> int:
        """Return the number of features that a state was learnt from."""
        return int(state.fixed["x_mean"].shape[0])

    @override
    def take(self, other: Self) -> None:
        super().take(other)
        self.n_features_in_ = self.n_features_of(self.state_)

    @override
    def saved_beside(self) -> dict[str, Any]:
        said = {**super().saved_beside(), "of_rows": getattr(self, "_of_rows", False)}
        named = getattr(self, "_named_classes", None)
        if named is not None:
            said["classes"] = classes_to_json(named)
        if hasattr(self, "feature_names_in_"):
            said["feature_names"] = self.feature_names_in_.tolist()
        return said

    @override
    def restore_beside(self, said: dict[str, Any]) -> None:
        super().restore_beside(said)
        self.n_features_in_ = self.n_features_of(self.state_)
        self._of_rows = bool(said.get("of_rows", False))
        self._named_classes = classes_from_json(said["classes"]) if "classes" in said else None
        if "feature_names" in said:
            self.feature_names_in_ = np.array(said["feature_names"], dtype=object)

    # -- parts ---------------------------------------------------------------------------------

    def _read(
        self, X: Any, bags: Any, coords: Any, *, reset: bool, instances: bool = False
    ) -> GivenBags:
        """Group what a user gave; ``instances``: rows are wanted, of whatever bags."""
        if not reset:
            self.fitted_state()
        rows = bags is None and not instances and not is_list_of_bags(X)
        if rows and not reset and not getattr(self, "_of_rows", False):
            msg = (
                f"this {type(self).__name__} was fitted to bags, and X has rows without bags; give "
                "bags=, one id a row, or X as a list with one array a bag"
            )
            raise BagsError(msg)
        return read_bags(self, X, bags, coords, reset=reset, allow_missing=self.allows_missing)

    def _numbers(self, y: Any, given: GivenBags) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the classes, and the number of each bag as the user sees them."""
        if self.learns == "numbers":
            return None, numbers_of(y, given)
        labels = labels_of(y, given)
        classes = classes_in(labels, several=self.learns == "classes")
        return classes, codes_of(labels, classes)

    def _means(self, X: Any, bags: Any, coords: Any) -> np.ndarray:
        """Return each bag's expected probability, probabilities or response, as the user sees it.

        All bags have the number 0, which seeds their draws: what is said of a bag does not depend
        on the bags beside it.
        """
        if isinstance(X, BagBlock):
            _refuse_beside_bags(bags=bags, coords=coords)
            return np.asarray(self.predict_bags(X).mean)
        given = self._read(X, bags, coords, reset=False)
        found = []
        for which, x, at, offsets in given.pieces():
            n_bag = which.stop - which.start
            none = np.zeros(n_bag)
            block = BagBlock(x, np.ones(x.shape[0]), at, offsets, none, none.astype(np.int64))
            found.append(self.predict_bags(block).mean)
        return given.as_shown(np.concatenate(found))

    def _instance_means(self, given: GivenBags) -> np.ndarray:
        """Return each instance's probability to be positive, in the stored order: (n_row,)."""
        if "pixels" not in self.predicts or self.learns != "two classes":
            msg = (
                f"{type(self).__name__} labels bags alone; use predict_proba, or PsiVGPMIL or VWSGP"
            )
            raise UnsupportedError(msg)
        found = [self.predict_pixels(x, at).mean for _, x, at, _ in given.pieces()]
        return np.concatenate(found)

    # -- what a model defines ------------------------------------------------------------------

    def check_responses(self, y: np.ndarray) -> None:
        """Raise BagsError unless a model can learn from the bags' responses ``y`` (n_bag,)."""
        check_labels(y)

    def predict_block(
        self, params: Arrays, x: np.ndarray, coords: np.ndarray | None
    ) -> Probability | Prediction:
        """Predict each instance of ``x`` (n_pix, n_feat), ``coords`` (n_pix, n_axis) km."""
        raise NotImplementedError

    def predict_pixels(
        self, x: np.ndarray, coords: np.ndarray | None = None
    ) -> Probability | Prediction:
        """Return the distribution of the probability that each instance is positive.

        Parameters
        ----------
        x : (n_pix, n_feat)
            Covariates as measured.
        coords : (n_pix, n_axis), km
            Needed where the kernel has a spatial part.
        """
        return self.predict_block(self.fitted_params(), as_array(x), coords)


def _by_class(p: np.ndarray) -> np.ndarray:
    """Return the probability of each class: (n, n_class)."""
    p = np.clip(p, 0.0, 1.0)
    return p if p.ndim == 2 else np.column_stack([1.0 - p, p])


def _refuse_beside_bags(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            msg = f"{name}: Bags hold it already; give Bags alone, or X, y and bags"
            raise BagsError(msg)


def without_unused_coords(sample: Summary, kernel: str) -> Summary:
    """Return the sample without its coordinates where the kernel does not look at them.

    A store may have none, and inducing points should spread over what matters.
    """
    if sample.coords is None:
        return sample
    names = parse_kernel(kernel, sample.x.shape[1], has_coords=True).names
    if np.isfinite(sample.coords).all() and any("_space" in name for name in names):
        return sample
    return replace(sample, coords=None)
