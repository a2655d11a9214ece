"""Is a run that a scheduler takes for running still alive? The map's lock knows.

A run that works holds the lock of its map; a run that waits for it gets it as soon as it is free.
One that has been under way for a while, while the lock is free, has no process any more.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum

from pipeline.config.schema import Config
from pipeline.storage.lock import is_locked

LOOK_S = 3.0  # between looks: a run that has just ended has let go of its lock, and tells so soon
_PENDING_FACTOR = 5  # how much longer a process may take to start than to take its lock


class Verdict(Enum):
    """What is to be done with a run."""

    ALIVE = "alive"
    RETRY = "retry"
    CANCELLED = "cancelled"
    GIVE_UP = "give up"


def judge_run(
    config: Config,
    state: str,
    since: datetime,
    times: int,
    *,
    grace_s: float,
    looks: int = 3,
    look_s: float = LOOK_S,
) -> Verdict:
    """Judge a run that has not ended.

    Parameters
    ----------
    config : Config
        Of its map.
    state : str
        ``RUNNING``, ``PENDING`` or ``CANCELLING``.
    since : datetime
        Since when it has been so.
    times : int
        How often it was started.
    grace_s : float
        Seconds that it may be without the lock at first.
    looks, look_s : int, float
        Looks at the lock, and seconds between them: longer than between a waiting run's tries.
    """
    grace = grace_s * (_PENDING_FACTOR if state == "PENDING" else 1)
    if (datetime.now(UTC) - since).total_seconds() < grace:
        return Verdict.ALIVE
    for look in range(looks):
        if is_locked(config.output.dir):  # by this run, or by one that it waits for
            return Verdict.ALIVE
        if look < looks - 1:
            time.sleep(look_s)
    if state == "CANCELLING":
        return Verdict.CANCELLED
    return Verdict.GIVE_UP if times > config.update.retries + 1 else Verdict.RETRY
