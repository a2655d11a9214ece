"""Labels as users hold them, of any kind, and the numbers that models learn from."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets

from models.core.errors import BagsError
from models.mil.data.bags_in import GivenBags, show

# Words for the labels 1 and 0, those of the command line (geo.core.columns.LABELS, which this
# package may not import; a test holds them together).
POSITIVE = frozenset({"1", "yes", "y", "true", "t", "positive", "present"})
NEGATIVE = frozenset({"0", "no", "n", "false", "f", "negative", "absent"})


def labels_of(y: Any, given: GivenBags) -> np.ndarray:
    """Return the label of each bag, as the user sees them: (n_bag,) bool, int, float or str.

    Raises
    ------
    BagsError
        If labels are missing or no labels, or those of a bag's rows differ.
    """
    values = given.of_bags(y, "y")
    missing = pd.isna(values)
    if missing.any():
        bag = given.as_shown(given.ids)[int(np.argmax(missing))]
        msg = f"y of bag {show(bag)} is missing; give its label, or leave the bag out"
        raise BagsError(msg)
    values = _of_one_type(values)
    if values.dtype.kind == "f" and np.isinf(values).any():
        bag = given.as_shown(given.ids)[int(np.argmax(np.isinf(values)))]
        msg = f"Input y contains infinity: bag {show(bag)}; give its label, or leave the bag out"
        raise BagsError(msg)
    try:
        check_classification_targets(values)
    except ValueError as error:
        raise BagsError(str(error)) from error
    return values


def classes_in(labels: np.ndarray, *, several: bool) -> np.ndarray:
    """Return the distinct labels: the last of two is the positive class.

    They ascend, but for two words of which one is in :data:`NEGATIVE` and one in :data:`POSITIVE`,
    in whatever letters: ``no`` comes before ``Yes``, which sorts the other way.

    Parameters
    ----------
    labels : (n_bag,) array
    several : bool
        Whether the model can learn more than two classes.

    Raises
    ------
    BagsError
        If there is one class, or there are too many.
    """
    classes = np.unique(labels)
    if classes.size == 1:
        held = f"all labels are {show(classes[0])} (one class)"
        msg = f"{held}; a classifier needs bags of both classes"
        raise BagsError(msg)
    if classes.size > 2 and not several:
        listed = ", ".join(show(each) for each in classes[:5])
        more = f" and {classes.size - 5} more" if classes.size > 5 else ""
        msg = (
            "Only binary classification is supported. The type of the target is multiclass: labels "
            f'are {listed}{more}; join classes, or use BLRT(task="multiclass")'
        )
        raise BagsError(msg)
    if classes.size == 2 and classes.dtype.kind == "U":
        first, last = (str(each).strip().lower() for each in classes)
        if first in POSITIVE and last in NEGATIVE:
            yes, no = (str(each) for each in classes)
            # Scorers sort strings themselves, whatever classes_ says: roc_auc becomes 1 - AUC.
            msg = (
                f"{yes!r} is the positive class, {no!r} the negative one; scikit-learn's own "
                f"scorers (roc_auc, neg_log_loss) sort labels: give them y == {yes!r}"
            )
            warnings.warn(msg, UserWarning, stacklevel=2)
            return classes[::-1].copy()
    return classes


def codes_of(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the place of each label in the classes, in whatever order these are: (n_bag,)."""
    order = np.argsort(classes)
    return order[np.searchsorted(classes, labels, sorter=order)].astype(np.float64)


def numbers_of(y: Any, given: GivenBags) -> np.ndarray:
    """Return the response of each bag, as the user sees them: (n_bag,) float64."""
    values = given.of_bags(y, "y")
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        msg = f"y holds what is no number ({error}); this model learns numbers"
        raise BagsError(msg) from error
    if not np.isfinite(numbers).all():
        bag = given.as_shown(given.ids)[int(np.argmin(np.isfinite(numbers)))]
        msg = f"y of bag {show(bag)} is not finite; leave the bag out"
        raise BagsError(msg)
    if numbers.size == 1:
        msg = "there is one bag (1 sample); give several"
        raise BagsError(msg)
    return numbers


def classes_to_json(classes: np.ndarray) -> dict[str, Any]:
    """Describe classes for a saved model's ``model.json``."""
    return {"dtype": classes.dtype.str, "values": classes.tolist()}


def classes_from_json(said: dict[str, Any]) -> np.ndarray:
    """Undo :func:`classes_to_json`."""
    return np.array(said["values"], dtype=said["dtype"])


def _of_one_type(values: np.ndarray) -> np.ndarray:
    """Return labels that a data frame held as objects as what they are."""
    if values.dtype.kind == "S":
        return np.char.decode(values)
    if values.dtype != object:
        return values
    kinds = {
        bool: (bool, np.bool_),
        str: (str,),
        int: (int, np.integer),
        float: (float, np.floating),
    }
    for kind, types in kinds.items():
        fits = (bool, np.bool_) if kind is not bool else ()
        if all(isinstance(each, types) and not isinstance(each, fits) for each in values):
            return np.array([kind(each) for each in values])
    named = sorted({type(each).__name__ for each in values})
    msg = f"Unknown label type: y holds {' and '.join(named)}; give labels of one type"
    raise BagsError(msg)
