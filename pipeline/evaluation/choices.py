"""What a classifier chose by held-out bags during its fit: settings, and a recalibration."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from pipeline.core.text_tables import text_table

KEY = "choices"


def choices(model: Any) -> dict[str, Any]:
    """Return what a fitted model chose by inner folds; empty of models that choose nothing.

    Parameters
    ----------
    model : fitted model

    Returns
    -------
    dict
        ``settings``: a row for each candidate with its ``settings``, its ``log_score`` (mean log
        probability of a held-out bag's label, nats), the standard ``error`` of the difference to
        the best, and whether it was ``chosen``; ``recalibration``: ``intercept``, ``slope`` by
        the logit and ``size_slope`` by the logarithm of a bag's size over ``size``, the bags'
        geometric mean.
    """
    found: dict[str, Any] = {}
    if getattr(model, "selection_", []):
        found["settings"] = model.selection_
    if getattr(model, "recalibrates", False):
        by = model.recalibration_
        found["recalibration"] = {
            "intercept": by.intercept,
            "slope": by.slope,
            "size_slope": by.size_slope,
            "size": float(np.exp(by.log_size)),
        }
    return found


def named_choices(model: Any) -> dict[str, Any]:
    """Return the entry of a report, or nothing where there is nothing to tell."""
    found = choices(model)
    return {KEY: found} if found else {}


def choices_parts(report: dict[str, Any]) -> list[Table | str]:
    """Return what a person reads of it: a table of the candidates, and a line."""
    found = report.get(KEY, {})
    parts: list[Table | str] = []
    if "settings" in found:
        title = "settings, by the log probability of bags left out, nats"
        table = text_table(title, "log score", "+-", "", named="settings")
        for row in sorted(found["settings"], key=lambda row: -(row["log_score"] or -1e300)):
            named = ", ".join(f"{name} {_said(value)}" for name, value in row["settings"].items())
            score = "failed" if row["log_score"] is None else f"{row['log_score']:.3f}"
            error = "" if row["error"] is None or row["chosen"] else f"{row['error']:.3f}"
            table.add_row(named, score, error, "chosen" if row["chosen"] else "")
        parts.append(table)
    if "recalibration" in found:
        by = found["recalibration"]
        parts.append(
            f"recalibrated by held-out bags: logit p' = {by['intercept']:.2f} + "
            f"{by['slope']:.2f} logit p {by['size_slope']:+.2f} log(n / {by['size']:.3g})"
        )
    return parts


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
