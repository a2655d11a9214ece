"""A bag store read with other responses: the same areas and pixels, nothing rewritten."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from pipeline.store.bag_store import BagStore


class OtherResponses(BagStore):
    """A bag store whose areas have other responses than on disk.

    Pixels are read from the store's own directory, by this process or by workers, so that only
    the responses travel.

    Parameters
    ----------
    store : BagStore
        Whole or thinned; covariates are scaled as it scales them.
    y : (n_bag,) float64 array
        Response of each area, in the store's order.

    Raises
    ------
    ValueError
        If ``y`` has another shape, or a value that is not finite.
    """

    def __init__(self, store: BagStore, y: np.ndarray) -> None:
        y = np.array(y, dtype=np.float64)
        if y.shape != (store.n_bag,) or not np.isfinite(y).all():
            found = f"y has shape {y.shape}, or values that are not finite; give ({store.n_bag},)"
            raise ValueError(found)
        super().__init__(store.path, store.cache_mb)
        y.setflags(write=False)
        self._own = store
        self.y = y
        self.fingerprint = (
            f"{store.fingerprint}/responses {hashlib.sha256(y.tobytes()).hexdigest()}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return OtherResponses, (self._own, self.y)

    def scaling(self, bags: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each covariate over the pixels of some bags."""
        return self._own.scaling(bags)
