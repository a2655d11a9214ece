"""Failures of servers of inputs: what they mean, and which may pass by themselves."""

from __future__ import annotations

import re
from urllib.error import HTTPError

from geo.core.errors import Problem

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


def web_problem(address: str, cause: str, where: str = "") -> Problem:
    """Describe a failure of GDAL at an address: what a server said is not damage of the file.

    Parameters
    ----------
    address : str
        As in the configuration.
    cause : str
        GDAL's message.
    where : str, optional
        What was read, such as `` at row 17``.
    """
    cause = re.sub(r"'?/vsicurl\?\S+", address, cause)
    code = re.search(r"HTTP (?:response code|error code)\s*:\s*(\d+)", cause)
    status = int(code[1]) if code else 0
    if status in (404, 410):
        return Problem(address, f"no such file (HTTP {status})", "correct the address")
    if status in (401, 403, 407):
        remedy = "give an address that needs no login, or download the file"
        return Problem(address, f"access denied (HTTP {status})", remedy)
    if status or re.search(r"CURL|[Rr]esolve|[Cc]onnect|[Tt]imed? ?out", cause):
        found = f"cannot be reached{where} ({f'HTTP {status}' if status else cause})"
        remedy = "check the server and the network, then repeat the command"
        return Problem(address, found, remedy, transient=not status or status_passes(status))
    return Problem(address, f"cannot be read{where} ({cause})", "download the file, and give that")
