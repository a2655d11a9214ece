"""Which failures of a server may pass by themselves."""

from __future__ import annotations

from urllib.error import HTTPError

_LATER = (408, 425, 429)  # and every 5xx


def status_passes(status: int) -> bool:
    """Return whether a server that answers with this HTTP status may answer otherwise later."""
    return status >= 500 or status in _LATER


def error_passes(error: BaseException) -> bool:
    """Return whether a request that failed so may succeed later.

    A server that is away, does not answer or breaks off may; a refusal and an address that is none
    may not.
    """
    if isinstance(error, HTTPError):
        return status_passes(error.code)
    return isinstance(error, OSError)
