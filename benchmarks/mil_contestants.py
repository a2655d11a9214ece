"""What the multiple-instance benchmarks compare: our classifiers, and baselines of scikit-learn.

A contestant is named by its kind and the options that are not defaults: ``blrt``,
``psi_vgpmil density=gamma n_inducing=200``.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn
from sklearn.ensemble import RandomForestClassifier

from benchmarks import mil_attention, mil_baselines
from benchmarks.mil_attention import ATTENTION, by_attention
from benchmarks.mil_baselines import BASELINES, by_statistics
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.training.registry import kinds
from pipeline.core.sources import code_hash

N_CUT = 8  # thresholds of each feature in the counts of ``counts_forest``


@dataclass(frozen=True)
class Predicted:
    """Probabilities of test bags (n_bag,), and of their instances (n_pix,) if a model has any."""

    bags: np.ndarray
    instances: np.ndarray | None = None


@dataclass(frozen=True)
class Contestant:
    """A way to learn from labelled bags.

    Attributes
    ----------
    name, about : str
    predict : callable
        ``predict(training, test, seed)`` learns from the training bags; returns Predicted, or the
        probabilities of the bags alone.
    code : str
        Hash of the sources that decide the probabilities.
    """

    name: str
    about: str
    predict: Callable[[BagBlock, BagBlock, int], Predicted | np.ndarray]
    code: str


def by_kind(kind: str, **options: Any) -> Callable[[BagBlock, BagBlock, int], Predicted]:
    """Return ``predict`` of one of our classifiers; with its defaults but for ``options``."""
    model_class = kinds()[kind]
    seeded = "seed" in inspect.signature(model_class).parameters

    def predict(training: BagBlock, test: BagBlock, seed: int) -> Predicted:
        model: Any = model_class(**({"seed": seed} if seeded else {}), **options)
        with one_blas_thread():
            model.fit(training, n_thread=1)
            bags = np.asarray(model.predict_bags(test).mean)
            if "pixels" not in model.predicts:
                return Predicted(bags)
            return Predicted(bags, np.asarray(model.predict_pixels(test.x).mean))

    return predict


def counts_forest(training: BagBlock, test: BagBlock, seed: int) -> np.ndarray:
    """Random forest on shares of instances above eight fixed thresholds a feature.

    The bag representation that figure 1 (f) of the BLRT paper compares with.
    """
    cuts = np.linspace(training.x.min(axis=0), training.x.max(axis=0), N_CUT + 2)[1:-1]

    def shares(bags: BagBlock) -> np.ndarray:
        above = (bags.x[:, None] > cuts).reshape(bags.n_pix, -1).astype(np.float64)
        return np.add.reduceat(above, bags.offsets[:-1]) / np.diff(bags.offsets)[:, None]

    forest = RandomForestClassifier(500, random_state=seed).fit(shares(training), training.y)
    return forest.predict_proba(shares(test))[:, 1]


@functools.cache
def contestants() -> dict[str, Contestant]:
    """Return the baselines, and every registered classifier with its defaults, by name."""
    own = code_hash(mil_baselines.__name__, packages=("benchmarks",))
    own = f"{own} scikit-learn {sklearn.__version__}"
    found = {
        name: Contestant(name, about, by_statistics(make), own)
        for name, (about, make) in BASELINES.items()
    }
    for kind, model_class in kinds().items():
        if model_class.responses == "labels":
            code = code_hash(model_class.__module__)
            found[kind] = Contestant(kind, model_class.about, by_kind(kind), code)
    return found


@functools.cache
def find_contestant(name: str) -> Contestant:
    """Return the contestant of a name, options included.

    Raises
    ------
    ValueError
        If there is no such kind, or an option is no ``name=value``.
    """
    kind, *options = name.split()
    if name == "counts_forest":
        code = f"{inspect.getsource(counts_forest)} scikit-learn {sklearn.__version__}"
        return Contestant(name, "random forest on counts", counts_forest, code)
    if name in ATTENTION:
        about, make = ATTENTION[name]
        code = code_hash(mil_attention.__name__, packages=("benchmarks",))
        return Contestant(name, about, by_attention(make), code)
    if kind not in contestants():
        msg = f"{kind} is none of {', '.join(contestants())}"
        raise ValueError(msg)
    default = contestants()[kind]
    if not options:
        return default
    if kind in BASELINES:
        msg = f"{name}: baselines have no options"
        raise ValueError(msg)
    given = options_of(name)
    about = f"{kind} with {', '.join(options)}"
    return Contestant(name, about, by_kind(kind, **given), default.code)


def options_of(name: str) -> dict[str, Any]:
    """Return the options in a contestant's name.

    Raises
    ------
    ValueError
        If one is no ``key=value``.
    """
    given = {}
    for option in name.split()[1:]:
        key, is_pair, value = option.partition("=")
        if not is_pair:
            msg = f"{name}: {option} cannot be used; name options as key=value"
            raise ValueError(msg)
        given[key] = _value(value)
    return given


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
