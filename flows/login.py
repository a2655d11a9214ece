"""The login of the server that `flows.serve` starts: made once, in a file of its owner alone.

Without a login any user of the machine could start programs through the server; so could any page
that a browser on it shows.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

LOGIN = "PREFECT_API_AUTH_STRING"
USER = "disagg"
ANSWER_S = 15.0  # after which a silent server is given up


def prefect_home() -> Path:
    """Return the directory of Prefect's records."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def login_file() -> Path:
    """Return the file of the login."""
    return prefect_home() / "disagg-login"


def stored_login() -> str | None:
    """Return ``user:password``; None without a file, or where others own or may read it."""
    try:
        descriptor = os.open(login_file(), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(descriptor, encoding="utf-8") as file:
        about = os.fstat(descriptor)
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            return None
        return file.read().strip() or None


def made_login() -> str:
    """Return the stored login; make one first if there is none.

    Raises
    ------
    OSError
        If there is a file that is not ours alone, or none can be written.
    """
    found = stored_login()
    if found is not None:
        return found
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    login = f"{USER}:{secrets.token_urlsafe(32)}"
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(login + "\n")
    return login


def check_server() -> None:
    """Raise httpx.TransportError unless the server of PREFECT_API_URL answers.

    Prefect's own client tries one that is silent for eight minutes.
    """
    import httpx
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if url:
        httpx.get(f"{url}/health", timeout=ANSWER_S)


def use_stored_login() -> None:
    """Give the login to Prefect's client, unless it has one, or speaks to another machine."""
    host = urlsplit(os.environ.get("PREFECT_API_URL", "")).hostname
    if LOGIN in os.environ or host not in (None, "127.0.0.1", "::1", "localhost"):
        return
    login = stored_login()
    if login is not None:
        os.environ[LOGIN] = login
