"""Smoothed moments of the inducing values that are kept, as many as fit.

One takes megabytes where areas are many, and there is one for each period and draw of the
hyperparameters; smoothing again takes seconds.
"""

from __future__ import annotations

import numpy as np

from models.temporal.sites import Arrow

Moments = tuple[np.ndarray, Arrow]

MOST_BYTES = 256 << 20  # of four periods of a thousand areas, under ten draws


class KeptMoments:
    """Means and covariances by their owner and time; beyond a limit the oldest ones go.

    Parameters
    ----------
    most_bytes : int
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._held = most_bytes, dict[tuple[int, float], Moments]()
        self._bytes = 0

    def get(self, owner: object, time: float) -> Moments | None:
        """Return what is kept, if it is."""
        return self._held.get((id(owner), time))

    def put(self, owner: object, time: float, own: Moments, *, wanted: bool) -> None:
        """Keep the moments of a time; those that nobody asked for, if there is room.

        Parameters
        ----------
        owner : object
            Lives as long as this.
        time : float
        own : Moments
        wanted : bool
        """
        size = _size(own)
        if not wanted and self._bytes + size > self._most:
            return
        key = id(owner), time
        self._drop(key)
        # A list is a copy: another thread may keep something meanwhile.
        for oldest in list(self._held):
            if self._bytes + size <= self._most:
                break
            self._drop(oldest)
        self._held[key] = own
        self._bytes += size

    def _drop(self, key: tuple[int, float]) -> None:
        gone = self._held.pop(key, None)
        if gone is not None:
            self._bytes -= _size(gone)

    def __getstate__(self) -> int:
        return self._most  # places in memory mean nothing elsewhere

    def __setstate__(self, most: int) -> None:
        self._most, self._held, self._bytes = most, {}, 0


def _size(own: Moments) -> int:
    mean, cov = own
    return mean.nbytes + cov.shared.nbytes + cov.cross.nbytes + cov.own.nbytes
