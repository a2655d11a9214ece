"""The multiple-instance sets with their folds, and bags of handwritten digits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

from models import Bags

#: The sets, from few instances to many.
SETS = (
    *("Musk1", "Elephant", "Newsgroups2", "Musk2", "CorelAfrican", "BrownCreeper"),
    *("Mutagenesis1", "Protein"),
)
DIGITS = ("digits raw", "digits pca")
HALVES = " halves"  # ending of the name of a set in 20 random halves
FEW = " few"  # ending of the name of a set of which few bags are learnt from
N_FEW, N_DRAWS = 42, 10  # bags learnt from, and draws of them
MOST_KEPT, LEAST_SHARE = 400, 0.2  # bags of a set that are used, and share of its rarer label
DIGIT_BAG, N_COMPONENT = 10, 30  # digits a bag, principal components


@dataclass(frozen=True)
class Labelled:
    """A set of labelled bags, with the folds that it is scored on.

    Attributes
    ----------
    bags : Bags
    train : (n_repetition, n_fold, n_bag) bool
        Training bags of each fold; the others are held out.
    hot : (n_pix,) float64, optional
        Labels of the instances, where they are known.
    """

    bags: Bags
    train: np.ndarray
    hot: np.ndarray | None = None


def folder() -> Path:
    """Return the folder of the sets: ``mil`` of ``DISAGG_SHARED_DATA``."""
    beside = Path(__file__).parents[2] / "shared/data"
    return Path(os.environ.get("DISAGG_SHARED_DATA", beside)) / "mil"


def require_folder() -> Path:
    """Return the folder of the sets, or end with one line where it is absent."""
    if not folder().is_dir():
        raise SystemExit(f"error: {folder()}: no such folder; set DISAGG_SHARED_DATA")
    return folder()


def load_set(name: str) -> tuple[Bags, np.ndarray]:
    """Return a set's bags and its own folds: 5 repetitions of 10."""
    with np.load(folder() / f"{name}.npz") as held:
        order = np.argsort(held["bag"], kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(held["bag"]))])
        x = held["X"][order].astype(np.float64)
        return Bags(x, offsets, held["y"].astype(np.float64)), held["train_mask"]


def load_labelled(name: str) -> Labelled:
    """Return a set by its name: its own folds, random halves, few bags to learn from, or digits."""
    if name in DIGITS:
        bags, hot = digit_bags(0)
        if name == "digits pca":
            # The components use no labels; the paper also computes them on the whole set.
            x = PCA(N_COMPONENT, random_state=0).fit_transform(bags.x)
            bags = Bags(x, bags.offsets, bags.y)
        cut = StratifiedKFold(5, shuffle=True, random_state=0).split(bags.y, bags.y)
        return Labelled(bags, _masks([test for _, test in cut], bags.n_bag)[None], hot)
    if name.endswith(HALVES):
        bags, _ = load_set(name.removesuffix(HALVES))
        halves = StratifiedShuffleSplit(20, test_size=0.5, random_state=0).split(bags.y, bags.y)
        return Labelled(bags, _masks([test for _, test in halves], bags.n_bag)[:, None])
    if name.endswith(FEW):
        bags = _balanced(load_set(name.removesuffix(FEW))[0])
        few = StratifiedShuffleSplit(N_DRAWS, train_size=N_FEW, random_state=0)
        tests = [test for _, test in few.split(bags.y, bags.y)]
        return Labelled(bags, _masks(tests, bags.n_bag)[:, None])
    return Labelled(*load_set(name))


def _balanced(bags: Bags) -> Bags:
    """Return at most ``MOST_KEPT`` bags, of whose labels the rarer has ``LEAST_SHARE`` at least.

    Of few bags, two that are positive teach nothing that could be measured.
    """
    rng = np.random.default_rng(0)
    by_label = sorted((np.flatnonzero(bags.y == label) for label in (0.0, 1.0)), key=len)
    rare, common = (rng.permutation(each) for each in by_label)
    common = common[: round(rare.size * (1.0 / LEAST_SHARE - 1.0))]
    share = min(1.0, MOST_KEPT / (rare.size + common.size))
    chosen = [each[: round(share * each.size)] for each in (rare, common)]
    return bags.select(np.isin(np.arange(bags.n_bag), np.concatenate(chosen)))


def _masks(tests: list[np.ndarray], n_bag: int) -> np.ndarray:
    """Return masks of the training bags: (n_fold, n_bag)."""
    masks = np.ones((len(tests), n_bag), bool)
    for mask, test in zip(masks, tests, strict=True):
        mask[test] = False
    return masks


def set_hash(name: str) -> str:
    """Return a hash of the file of a set, or of what made it."""
    if name in DIGITS:
        return f"{name} 0 {sklearn.__version__}"
    for drawn in (HALVES, FEW):
        if name.endswith(drawn):
            return f"{set_hash(name.removesuffix(drawn))}{drawn} {sklearn.__version__}"
    return hashlib.blake2b((folder() / f"{name}.npz").read_bytes(), digest_size=8).hexdigest()


def digit_bags(seed: int, positive: tuple[int, ...] = (2, 9)) -> tuple[Bags, np.ndarray]:
    """Draw bags of ten of scikit-learn's 1,797 digits; no digit is drawn twice.

    Half of the bags are positive: 1 to 4 of their digits are among ``positive``.

    Returns
    -------
    bags : Bags
        64 features: the grey values.
    hot : (n_pix,) float64
        1 where a digit is among ``positive``.
    """
    data = load_digits()
    rng = np.random.default_rng(seed)
    wanted = np.isin(data.target, positive)
    hot, cold = (rng.permutation(np.flatnonzero(wanted == want)) for want in (True, False))
    members: list[np.ndarray] = []
    y: list[float] = []
    while True:
        n_hot = int(rng.integers(1, 5)) if len(y) % 2 else 0
        if hot.size < n_hot or cold.size < DIGIT_BAG - n_hot:
            break
        members.append(np.concatenate([hot[:n_hot], cold[: DIGIT_BAG - n_hot]]))
        rng.shuffle(members[-1])
        hot, cold = hot[n_hot:], cold[DIGIT_BAG - n_hot :]
        y.append(float(n_hot > 0))
    rows = np.concatenate(members)
    offsets = np.arange(0, rows.size + 1, DIGIT_BAG)
    return Bags(data.data[rows], offsets, y), wanted[rows].astype(float)
