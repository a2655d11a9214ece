"""Scores of bags for scikit-learn's cross-validation of rows."""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import MetadataRequest

from models.mil.data.bags_in import bag_codes, grouped

RESPONSES = ("predict", "predict_proba", "predict_log_proba", "decision_function")


class BagScorer:
    """One of scikit-learn's scores, over bags, where ``X`` has rows.

    Scikit-learn's own scorers do not pass the ids of the bags on to ``predict``. This one asks for
    them as metadata: ``GridSearchCV(model, grid, scoring=BagScorer("roc_auc"),
    cv=GroupKFold()).fit(X, y, groups=ids, bags=ids)``, after
    ``sklearn.set_config(enable_metadata_routing=True)`` and ``model.set_fit_request(bags=True)``.
    With a list of bags as ``X`` none of this is needed.

    Parameters
    ----------
    scoring : str
        See ``sklearn.metrics.get_scorer_names()``.
    """

    def __init__(self, scoring: str) -> None:
        self.scoring = scoring
        self._scorer = get_scorer(scoring)

    def __call__(
        self, estimator: Any, X: Any, y: Any, bags: Any = None, coords: Any = None
    ) -> float:
        """Return the score over bags.

        Parameters
        ----------
        estimator : fitted classifier of bags, or a pipeline that ends in one
        X : (n_row, n_feat)
        y : (n_row,), or one a bag
        bags : (n_row,)
        coords : (n_row, n_axis), km, optional
        """
        n_row = X.shape[0] if hasattr(X, "shape") else len(X)
        given = grouped(np.empty((n_row, 0)), *bag_codes(bags, n_row))
        beside = {"bags": bags} | ({} if coords is None else {"coords": coords})
        return float(self._scorer(_WithBags(estimator, beside), X, given.of_bags(y, "y")))

    def __repr__(self) -> str:
        return f"BagScorer({self.scoring!r})"

    def get_metadata_routing(self) -> MetadataRequest:
        """Return that the ids and positions are wanted (scikit-learn's metadata routing)."""
        wanted = MetadataRequest(owner=self)
        for name in ("bags", "coords"):
            wanted.score.add_request(param=name, alias=True)
        return wanted


class _WithBags:
    """An estimator whose predictions are always given the same metadata."""

    def __init__(self, estimator: Any, beside: dict[str, Any]) -> None:
        self._estimator, self._beside = estimator, beside

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._estimator, name)
        if name not in RESPONSES:
            return found

        @wraps(found)  # the name of a response tells scikit-learn what it is
        def with_bags(X: Any) -> Any:
            return found(X, **self._beside)

        return with_bags
