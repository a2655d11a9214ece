"""What the multiple-instance benchmarks compare: our classifiers, and baselines of scikit-learn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn

from benchmarks import mil_baselines
from benchmarks.mil_baselines import BASELINES, by_statistics
from benchmarks.records import source_hash_of
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.training.registry import kinds


@dataclass(frozen=True)
class Contestant:
    """A way to learn from labelled bags.

    Attributes
    ----------
    name, about : str
    predict : callable
        ``predict(training, test, seed)`` learns from the training bags and returns the probability
        that each test bag is positive: (n_bag,).
    code : str
        Hash of the sources that decide the probabilities.
    """

    name: str
    about: str
    predict: Callable[[BagBlock, BagBlock, int], np.ndarray]
    code: str


def by_kind(kind: str, **options: Any) -> Callable[[BagBlock, BagBlock, int], np.ndarray]:
    """Return ``predict`` of one of our classifiers; with its defaults but for ``options``."""
    model_class = kinds()[kind]
    seeded = "seed" in inspect.signature(model_class).parameters

    def predict(training: BagBlock, test: BagBlock, seed: int) -> np.ndarray:
        model: Any = model_class(**({"seed": seed} if seeded else {}), **options)
        with one_blas_thread():
            return np.asarray(model.fit(training, n_thread=1).predict_bags(test).mean)

    return predict


@functools.cache
def contestants() -> dict[str, Contestant]:
    """Return the baselines, and every registered classifier with its defaults, by name."""
    own = (
        f"{source_hash_of(mil_baselines.__name__, 'benchmarks')} scikit-learn {sklearn.__version__}"
    )
    found = {
        name: Contestant(name, about, by_statistics(make), own)
        for name, (about, make) in BASELINES.items()
    }
    for kind, model_class in kinds().items():
        if model_class.responses == "labels":
            code = source_hash_of(model_class.__module__, "models")
            found[kind] = Contestant(kind, model_class.about, by_kind(kind), code)
    return found
