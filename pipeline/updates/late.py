"""Report each late run once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline.config.schema import Config
from pipeline.publishing.notify import send_notification
from pipeline.storage.files import make_private, write_json

N_KEPT = 200  # reported runs to remember; the scheduler lists no more late ones at once


def report_late_runs(config: Config, late: Mapping[str, str]) -> list[str]:
    """Send a notification of each late run that was not yet reported.

    The process that watches sends it, so that the address of ``notify.webhook``, a secret, stays
    out of the scheduler's database.

    Parameters
    ----------
    config : Config
    late : mapping of str to str
        Name of each late run, by its id.

    Returns
    -------
    list of str
        A line for each notification sent, and for each error; an unsent one is tried again.
    """
    if "late" not in config.notify.on or not (config.notify.webhook or config.notify.email):
        return []
    path = config.output.dir / "work" / "late.json"
    try:
        reported = list(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        reported = []
    lines = []
    for number, name in late.items():
        if number in reported:
            continue
        text = f"{name} has not started: no worker has taken it; start a worker"
        errors = send_notification(config, "late", f"{config.name}: a run is late", text)
        lines.extend(errors or [f"{name}: late, reported"])
        # With two ways configured, one that works is enough: the other would repeat for ever.
        if len(errors) < sum(
            each is not None for each in (config.notify.webhook, config.notify.email)
        ):
            reported.append(number)
            make_private(path.parent)
            write_json(path, reported[-N_KEPT:], unique=True)
    return lines
