"""Decide whether a run that the scheduler lists as running is dead, by the map's lock.

A running process holds the lock of its map; a waiting process takes it as soon as it is free.
So if the lock stays free, the run has no process.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum

from pipeline.config.schema import Config
from pipeline.storage.lock import is_locked

CHECK_INTERVAL_S = 3.0  # a run releases its lock shortly before its final state is reported
_PENDING_FACTOR = 5  # starting a process takes longer than taking a lock


class RecoveryAction(Enum):
    """What to do with a run."""

    NONE = "none"
    RETRY = "retry"
    CANCELLED = "cancelled"
    GIVE_UP = "give up"


def recovery_action(
    config: Config,
    state: str,
    since: datetime,
    times: int,
    *,
    grace_s: float,
    n_checks: int = 3,
    interval_s: float = CHECK_INTERVAL_S,
) -> RecoveryAction:
    """Choose the action for a run without a final state.

    Parameters
    ----------
    config : Config
        The map's.
    state : str
        ``RUNNING``, ``PENDING`` or ``CANCELLING``.
    since : datetime
        Start of this state.
    times : int
        Number of starts of the run.
    grace_s : float
        Seconds that a run may take to acquire the lock.
    n_checks, interval_s : int, float
        Number of checks of the lock, and seconds between two of them: more than a waiting run
        takes between two attempts.
    """
    grace = grace_s * (_PENDING_FACTOR if state == "PENDING" else 1)
    if (datetime.now(UTC) - since).total_seconds() < grace:
        return RecoveryAction.NONE
    for check in range(n_checks):
        if is_locked(config.output.dir):  # by this run, or by another that this run waits for
            return RecoveryAction.NONE
        if check < n_checks - 1:
            time.sleep(interval_s)
    if state == "CANCELLING":
        return RecoveryAction.CANCELLED
    return RecoveryAction.GIVE_UP if times > config.update.retries + 1 else RecoveryAction.RETRY
