"""Which errors are transient, so that a retry may succeed, and how often and when to retry.

The command line and the Prefect flows follow this one policy.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from geo.core.errors import InputError
from pipeline.config.schema import Config
from pipeline.core.errors import ClusterError, NeverAnsweredError, StoreError, StoreInputError
from pipeline.storage.location import StorageUnreachableError

_PASSING = {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET,
    errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.ENETDOWN, errno.ENETRESET,
    errno.ENETUNREACH, errno.EPIPE, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


#: Share by which waits are made longer at random: the clients of a server must not come together.
JITTER = 0.2
MOST = 50  # retries; Prefect takes no more waits

Result = TypeVar("Result")


@dataclass(frozen=True)
class RetryPolicy:
    """How often a transient error is retried, and after how long.

    Attributes
    ----------
    retries : int
        Number of retries.
    delay_s : float
        Seconds before the first one; doubles.
    """

    retries: int = 0
    delay_s: float = 0.0

    @classmethod
    def of(cls, config: Config) -> RetryPolicy:
        """Return the policy of the section ``update``."""
        return cls(config.update.retries, config.update.retry_delay_s)

    def delays(self) -> list[float]:
        """Return the seconds before each retry, without jitter."""
        return [self.delay_s * 2.0**k for k in range(min(self.retries, MOST))]

    def call(
        self,
        function: Callable[[], Result],
        on_retry: Callable[[Exception, float, int], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> Result:
        """Call a function; after a transient error, wait and call it again.

        Parameters
        ----------
        function : callable
        on_retry : callable
            Called with the error, the seconds until the next call, and its number from 1.
        sleep : callable, optional

        Raises
        ------
        Exception
            The first that is not transient, or the last.
        """
        for number, delay in enumerate(self.delays(), start=1):
            try:
                return function()
            except Exception as error:
                if not is_transient(error) or isinstance(error, NeverAnsweredError):
                    raise
                wait = delay * random.uniform(1.0, 1.0 + JITTER)
                on_retry(error, wait, number)
                sleep(wait)
        return function()


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed without any change.

    Transient: errors of connections, object stores and network file systems, timeouts, a server of
    inputs that is away, and a Dask scheduler that does not answer (it may be restarting). Not
    transient: any other bad input, memory, a full disk, missing permissions, defects.
    """
    from models.core.errors import ModelError

    if isinstance(error, InputError):
        return error.transient
    if isinstance(error, ModelError | StoreInputError):
        return False
    if isinstance(error, ClusterError | StorageUnreachableError | ConnectionError | TimeoutError):
        return True
    if isinstance(error, StoreError):
        return False
    if isinstance(error, OSError):
        return error.errno in _PASSING
    return False
