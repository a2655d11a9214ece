"""Log messages of our packages, while somebody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGES = ("geo", "models", "pipeline", "flows")


@contextmanager
def library_messages(handler: logging.Handler) -> Iterator[None]:
    """Give a handler the log messages of our packages, from INFO on, and put all back after it.

    A handler that stayed would write to the stream of a command that has ended.

    Parameters
    ----------
    handler : logging.Handler
    """
    loggers = [logging.getLogger(package) for package in PACKAGES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
            logger.removeHandler(handler)
