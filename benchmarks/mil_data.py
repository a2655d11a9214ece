"""The multiple-instance sets with their folds, and bags of handwritten digits."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from models import Bags

#: The sets, from few instances to many.
SETS = (
    *("Musk1", "Elephant", "Newsgroups2", "Musk2", "CorelAfrican", "BrownCreeper"),
    *("Mutagenesis1", "Protein"),
)
DIGIT_BAG = 10  # digits a bag


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
    """Return a set's bags and the masks of its training bags: (n_repetition, n_fold, n_bag)."""
    with np.load(folder() / f"{name}.npz") as held:
        order = np.argsort(held["bag"], kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(held["bag"]))])
        x = held["X"][order].astype(np.float64)
        return Bags(x, offsets, held["y"].astype(np.float64)), held["train_mask"]


def set_hash(name: str) -> str:
    """Return a hash of a set's file."""
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
