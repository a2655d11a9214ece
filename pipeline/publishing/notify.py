"""Telling people: a webhook, e-mail, or both, as the configuration says."""

from __future__ import annotations

import json
import smtplib
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Literal

from pipeline.config.operation_schema import Email
from pipeline.config.schema import Config

Event = Literal["failure", "late", "gate"]
TIMEOUT_S = 20.0


def tell(config: Config, event: Event, subject: str, text: str) -> list[str]:
    """Tell those who want to know of this kind of event.

    What cannot be told must not stop a run: it is returned, not raised.

    Parameters
    ----------
    config : Config
    event : {"failure", "late", "gate"}
    subject : str
        One line.
    text : str
        What happened, and what to do.

    Returns
    -------
    list of str
        What went wrong in telling; empty where everybody was told, or nobody asks to be.
    """
    notify = config.notify
    if event not in notify.on:
        return []
    troubles = []
    if notify.webhook is not None:
        body = {"text": f"{subject}\n{text}", "map": config.name, "event": event}
        try:
            _post(notify.webhook.get_secret_value(), body)
        except (OSError, ValueError, urllib.error.URLError) as error:
            # Not the URL: it is a secret of those who own it.
            troubles.append(f"notify.webhook: {type(error).__name__}: {_reason(error)}")
    if notify.email is not None:
        try:
            _mail(notify.email, subject, text)
        except (OSError, smtplib.SMTPException) as error:
            troubles.append(f"notify.email: {notify.email.host}: {_reason(error)}")
    return troubles


def _post(url: str, body: dict[str, str]) -> None:
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass


def _mail(email: Email, subject: str, text: str) -> None:
    message = EmailMessage()
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message["Subject"] = subject
    message.set_content(text)
    with smtplib.SMTP(email.host, email.port, timeout=TIMEOUT_S) as server:
        if email.starttls:
            server.starttls()
        if email.user is not None and email.password is not None:
            server.login(email.user, email.password.get_secret_value())
        server.send_message(message)


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
