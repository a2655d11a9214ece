"""Deep features in front of a classifier of bags: tell which sheets hold a nine.

A sheet is a bag of eight handwritten digits, each somewhere in an 11 x 11 patch. A sheet's label
says whether a given digit is on it; nobody says which patch that is. Distances between pixels say
little, because the digits lie at different places. A small network that was trained to read single
digits, on other images, gives 32 numbers a patch instead: the activations of its last hidden layer.
The same Gaussian process classifier learns from both, from 80 labelled sheets, and is scored on 200
others; network, training sheets and test sheets share no image.

    python -m examples.deep_features.digits

The images come with scikit-learn; nothing is downloaded. In place of ``HiddenLayer`` put any
network: what it needs is a method ``transform`` from rows to features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from models import InstanceTransformer, PsiVGPMIL

DIGITS = (0, 4, 9)
SIDE, BAG_SIZE, N_TRAIN, N_TEST, N_PASS = 11, 8, 80, 200, 120


class HiddenLayer(TransformerMixin, BaseEstimator):
    """Activations of the last hidden layer of a network that is trained already."""

    def __init__(self, network: MLPClassifier) -> None:
        self.network = network

    def fit(self, X: Any, y: Any = None) -> HiddenLayer:
        """Return self: the network has been trained on other images."""
        del X, y
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Return the activations of each row: (n_row, n_unit)."""
        for weight, intercept in zip(
            self.network.coefs_[:-1], self.network.intercepts_[:-1], strict=True
        ):
            X = np.maximum(X @ weight + intercept, 0.0)
        return X

    def __sklearn_clone__(self) -> HiddenLayer:
        return self  # a clone would forget what the network has learnt


def patches(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Put each image (n, 64) at a random place of an empty patch: (n, SIDE ** 2)."""
    out = np.zeros((len(images), SIDE, SIDE))
    for patch, image in zip(out, images.reshape(-1, 8, 8), strict=True):
        row, column = rng.integers(0, SIDE - 7, 2)
        patch[row : row + 8, column : column + 8] = image
    return out.reshape(len(images), -1)


def sheets(
    images: np.ndarray, digits: np.ndarray, wanted: int, n: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return bags of patches, and whether each holds the wanted digit: every other one, once."""
    y = np.arange(n) % 2 == 1
    bags = []
    for positive in y:
        others = rng.choice(np.flatnonzero(digits != wanted), BAG_SIZE, replace=False)
        if positive:
            others[0] = rng.choice(np.flatnonzero(digits == wanted))
        bags.append(patches(images[others], rng))
    return bags, y


def main(seed: int = 0) -> dict[str, dict[str, float]]:
    """Print and return AUC, accuracy and log loss on the test sheets, means over the digits."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    images = images / 16.0
    for_network, train, test = np.split(rng.permutation(len(images)), [800, 1300])

    network = MLPClassifier((128, 32), learning_rate_init=3e-3, random_state=seed)
    for _ in range(N_PASS):  # the images at new places each time
        network.partial_fit(
            patches(images[for_network], rng), digits[for_network], classes=np.arange(10)
        )

    # A sheet is positive if any of its digits is the wanted one.
    classifier = PsiVGPMIL(n_inducing=100, variance=25.0, bag_rule="any", seed=seed)
    candidates = {
        "pixels": classifier,
        "deep features": make_pipeline(InstanceTransformer(HiddenLayer(network)), classifier),
    }
    scores: dict[str, list[list[float]]] = {name: [] for name in candidates}
    for wanted in DIGITS:
        x, y = sheets(images[train], digits[train], wanted, N_TRAIN, rng)
        x_test, y_test = sheets(images[test], digits[test], wanted, N_TEST, rng)
        for name, model in candidates.items():
            p = model.fit(x, y).predict_proba(x_test)[:, 1]
            found = [roc_auc_score(y_test, p), np.mean((p > 0.5) == y_test), log_loss(y_test, p)]
            scores[name].append([float(each) for each in found])
    means = {
        name: dict(
            zip(("auc", "accuracy", "log_loss"), np.mean(each, axis=0).tolist(), strict=True)
        )
        for name, each in scores.items()
    }
    print(f"{N_TEST} test sheets of each digit {DIGITS}, means: AUC, accuracy, log loss")
    for name, mean in means.items():
        print(f"{name:14}{mean['auc']:6.3f}{mean['accuracy']:8.3f}{mean['log_loss']:8.3f}")
    return means


if __name__ == "__main__":
    main()
