"""Notifications by webhook and e-mail."""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.error
import urllib.request
from email.message import EmailMessage
from typing import Literal

from geo.core.text_safety import one_line_text
from pipeline.config.operation_schema import Email
from pipeline.config.schema import Config

Event = Literal["failure", "late", "gate"]
TIMEOUT_S = 20.0


def send_notification(config: Config, event: Event, subject: str, text: str) -> list[str]:
    """Send a notification if the configuration requests this event.

    Errors are returned, not raised: they must not stop a run.

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
        Errors; empty if all notifications were sent, or none is configured.
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
            # The message omits the URL, which is a secret.
            troubles.append(f"notify.webhook: {type(error).__name__}: {_reason(error)}")
    if notify.email is not None:
        try:
            _mail(notify.email, subject, text)
        except (OSError, ValueError, smtplib.SMTPException) as error:  # ValueError: an address
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
    # A line break in a header would start another header.
    message["Subject"] = one_line_text(subject)
    message.set_content(text)
    with _connect(email) as server:
        if email.encryption == "starttls":
            try:
                server.starttls(context=ssl.create_default_context())
            except smtplib.SMTPNotSupportedError:
                found = (
                    "the server offers no STARTTLS; give another server, or, where nobody can "
                    "listen, notify.email.encryption: none"
                )
                raise smtplib.SMTPNotSupportedError(found) from None
        if email.user is not None and email.password is not None:
            server.login(email.user, email.password.get_secret_value())
        server.send_message(message)


def _connect(email: Email) -> smtplib.SMTP:
    if email.encryption == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(email.host, email.server_port, timeout=TIMEOUT_S, context=context)
    return smtplib.SMTP(email.host, email.server_port, timeout=TIMEOUT_S)


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
