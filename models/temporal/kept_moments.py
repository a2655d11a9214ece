"""Smoothed moments of the inducing values that are kept, as many as fit.

One takes megabytes where areas are many, and there is one for each period and draw of the
hyperparameters; smoothing again takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import numpy as np

from models.temporal.sites import Arrow

Moments = tuple[np.ndarray, Arrow]
Key = tuple[int, float]

MOST_BYTES = 256 << 20  # of four periods of a thousand areas, under ten draws


class KeptMoments:
    """Means and covariances by their owner and time; beyond a limit the oldest ones go.

    Parameters
    ----------
    most_bytes : int
        What is asked for at once stays together, also where it is more.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._lock = most_bytes, Lock()
        self._held: dict[Key, Moments] = {}

    def get(self, owner: object, time: float) -> Moments | None:
        """Return what is kept, if it is."""
        return self._held.get((id(owner), time))

    def put(
        self, owner: object, wanted: Mapping[float, Moments], others: Mapping[float, Moments]
    ) -> None:
        """Keep moments by time.

        Parameters
        ----------
        owner : object
            Lives as long as this.
        wanted : mapping
            Asked for together; older ones make room.
        others : mapping
            That nobody asked for: kept if there is room.
        """
        new = {(id(owner), time): own for time, own in wanted.items()}
        with self._lock:
            older = {key: own for key, own in self._held.items() if key not in new}
            room = self._most - sum(map(_size, new.values()))
            left = sum(map(_size, older.values()))
            for key in list(older):
                if left <= room:
                    break
                left -= _size(older.pop(key))
            for time, own in others.items():
                if left + _size(own) <= room and (id(owner), time) not in older:
                    older[id(owner), time] = own
                    left += _size(own)
            self._held = {**older, **new}

    def __getstate__(self) -> int:
        return self._most  # places in memory mean nothing elsewhere

    def __setstate__(self, most: int) -> None:
        self.__init__(most)  # type: ignore[misc]


def _size(own: Moments) -> int:
    mean, cov = own
    return mean.nbytes + cov.shared.nbytes + cov.cross.nbytes + cov.own.nbytes
