"""Steps of scikit-learn before a classifier of bags: what they do to rows, done to bags."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags

from models.core.errors import NotFittedError
from models.mil.data.bags_in import is_list_of_bags, joined


class InstanceTransformer(TransformerMixin, BaseEstimator):
    """Apply a transformer of rows to all instances of a list of bags.

    ``make_pipeline(InstanceTransformer(StandardScaler()), BLRT())`` takes one array a bag, so that
    cross-validation splits bags: the transformer learns from the instances of training bags alone.

    Parameters
    ----------
    transformer : scikit-learn transformer
        Of rows: a scaler, principal components, a network without its last layer. If it looks at
        labels, each instance has that of its bag.

    Attributes
    ----------
    transformer_ : transformer
        The one that was fitted.
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the transformer to the instances.

        Parameters
        ----------
        X : list of (n_instance, n_feat) arrays by bag, or rows
        y : (n_bag,) array_like, optional
        """
        if is_list_of_bags(X):
            sizes, X = joined(X, "X")
            y = None if y is None else np.repeat(np.asarray(y), sizes)
        self.transformer_ = clone(self.transformer).fit(X, y)
        return self

    def transform(self, X: Any) -> Any:
        """Return a list of transformed bags, or rows where ``X`` has rows.

        Raises
        ------
        NotFittedError
        """
        if not hasattr(self, "transformer_"):
            msg = "this InstanceTransformer is not fitted; call fit first"
            raise NotFittedError(msg)
        if not is_list_of_bags(X):
            return self.transformer_.transform(X)
        sizes, rows = joined(X, "X")
        done, ends = self.transformer_.transform(rows), np.cumsum(sizes)
        cut = done.iloc if hasattr(done, "iloc") else done
        return [cut[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
