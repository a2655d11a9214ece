"""``docs/mil-benchmarks.md``, written from ``benchmarks/results/mil_sets.json`` alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.mil_scores import alike

PAGE = Path(__file__).parents[1] / "docs" / "mil-benchmarks.md"
Row = dict[str, Any]
BASELINE, BASELINES = "extra_trees", ("extra_trees", "logistic", "gp_statistics")

HEAD = """# Classifiers of bags, measured

`python -m benchmarks.mil_sets` fits every classifier of the registry, with its defaults, to eight
multiple-instance sets, by the sets' own folds (5 repetitions of 10), beside baselines of
scikit-learn that see the mean, the minimum and the maximum of each feature in a bag. It writes this
page from `benchmarks/results/mil_sets.json`; do not edit it by hand.

How the scores are defined (`benchmarks/mil_scores.py`; all by scikit-learn):

* **AUC**: mean over the folds of a repetition. All other scores pool the held-out bags of a
  repetition. Every figure of a set is the mean over the repetitions that all methods were run on,
  where there are several with its standard error: how far it would move with other folds.
* **Accuracy**: at the threshold 0.5 / at the threshold that is best for the same bags.
* **By chance**: what labels drawn from the probabilities themselves give, mean of 200 times. Of few
  bags some threshold is always better than 0.5, and no bin has exactly its share.
* **Log loss**: nats a bag, probabilities clipped at 1e-12. Where all trees agree and err,
  extra trees lose 27 nats by one bag, and are an easy mark; the best of the three baselines is a
  harder one.
* **Calibration error**: 8 bins of equal width, mean of |mean probability - share of positives|,
  weighted by the bags in each bin.
* **Seconds**: processor time of fit and prediction, median of the folds. Other work on the machine
  adds to it: of `vwsgp` and `vwsgp_svi`, and of `psi_vgpmil` and `pooled_gp` where they have more
  than one repetition, it was measured beside other processes on two cores, and is two to three
  times what they take alone.
"""


def standard_error(row: Row, key: str) -> str:
    """Return the standard error of a mean over repetitions, as text; nothing of one repetition."""
    if row.get(f"{key}_sd") is None:
        return ""
    return f" ± {row[f'{key}_sd'] / row['repetitions'] ** 0.5:.3f}"


def _number(key: str, digits: int = 3) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:.{digits}f}{standard_error(row, key)}"


def _chance(row: Row, key: str) -> str:
    return f"{row[key]:.3f}" if key in row else "-"  # figures of earlier runs have none


TABLES: dict[str, Callable[[Row], str]] = {
    "AUC": _number("auc"),
    "Log loss": _number("log_loss"),
    "Accuracy at 0.5 / at the best threshold": lambda row: (
        f"{row['accuracy']:.3f} / {row['best_accuracy']:.3f}"
    ),
    "Best accuracy less that at 0.5 / by chance": lambda row: (
        f"{row['best_accuracy'] - row['accuracy']:.3f} / {_chance(row, 'chance_gap')}"
    ),
    "Brier score": _number("brier"),
    "Calibration error / by chance": lambda row: (
        f"{row['calibration_error']:.3f} / {_chance(row, 'chance_calibration_error')}"
    ),
    "Seconds a fold": lambda row: f"{row['seconds']:.3g}",
}
#: Conditions beside extra trees in the same run, or of the model alone.
CONDITIONS: dict[str, Callable[[Row, Row], bool]] = {
    "log loss at most + .05": lambda own, trees: own["log_loss"] <= trees["log_loss"] + 0.05,
    "log loss at most + .05 of the best baseline's": lambda own, trees: (
        own["log_loss"] <= trees["least_log_loss"] + 0.05
    ),
    "AUC at least": lambda own, trees: own["auc"] >= trees["auc"],
    "calibration error at most + .04": lambda own, trees: (
        own["calibration_error"] <= trees["calibration_error"] + 0.04
    ),
    "accuracy at 0.5 within .03 of the best threshold's": lambda own, _: (
        own["accuracy"] >= own["best_accuracy"] - 0.03
    ),
}


def page(result: dict[str, Any]) -> str:
    """Return the page."""
    sets = "\n".join(
        f"| {name} | {each['bags']} | {each['instances']} | {each['features']} "
        f"| {each['positive']:.2f} |"
        for name, each in result["sets"].items()
    )
    models = "\n".join(f"| `{name}` | {about} |" for name, about in result["models"].items())
    return "\n".join(
        [
            HEAD,
            f"| set | bags | instances | features | positive |\n|---|---|---|---|---|\n{sets}",
            f"\n| name | what it is |\n|---|---|\n{models}\n",
            *summary_lines(result),
            "",
        ]
    )


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Return the tables of all scores, in Markdown."""
    names = [name for name in result["sets"] if name in result["scores"]]
    measured = result
    result = {**result, "scores": {name: alike(result["scores"][name]) for name in names}}
    if not names:
        return ["Nothing has been measured yet."]
    lines = _conditions(result, names)
    for title, say in TABLES.items():
        lines += ["", f"## {title}", "", *_table(result, names, say)]
    return [*lines, "", "## What was run", "", *_coverage(measured, names)]


def _conditions(result: dict[str, Any], names: list[str]) -> list[str]:
    lines = [
        "## Beside extra trees",
        "",
        "In how many of the sets that both were measured on, by the mean of the repetitions:",
        "",
        _row(["", *CONDITIONS]),
        "|---" * (len(CONDITIONS) + 1) + "|",
    ]
    for model in result["models"]:
        rows = [result["scores"][name] for name in names]
        both = [
            (row[model], {**row[BASELINE], "least_log_loss": _least_log_loss(row)})
            for row in rows
            if "auc" in row.get(model, {}) and "auc" in row.get(BASELINE, {})
        ]
        if both:
            counts = [sum(holds(*pair) for pair in both) for holds in CONDITIONS.values()]
            lines.append(_row([f"`{model}`", *(f"{count} of {len(both)}" for count in counts)]))
    return lines


def _least_log_loss(row: dict[str, Row]) -> float:
    return min(row[name]["log_loss"] for name in BASELINES if "log_loss" in row.get(name, {}))


def _table(result: dict[str, Any], names: list[str], say: Callable[[Row], str]) -> list[str]:
    lines = [_row(["", *names]), "|---" * (len(names) + 1) + "|"]
    for model in result["models"]:
        rows = [result["scores"][name].get(model, {}) for name in names]
        if any("auc" in row for row in rows):
            cells = [say(row) if "auc" in row else "-" for row in rows]
            lines.append(_row([f"`{model}`", *cells]))
    return lines


def _coverage(result: dict[str, Any], names: list[str]) -> list[str]:
    """Say how many repetitions stand behind the figures, and why some are missing."""
    rows = {(n, m): result["scores"][n].get(m, {}) for n in names for m in result["models"]}
    by_count: dict[int, list[str]] = {}
    for (name, model), row in rows.items():
        if "auc" in row:
            by_count.setdefault(row["repetitions"], []).append(f"{model} on {name}")
    most = max(by_count, key=lambda n: len(by_count[n]), default=0)
    repetitions = "1 repetition" if most == 1 else f"{most} repetitions"
    lines = [f"* {repetitions} of 5, but for what follows."] if most else []
    for count, which in sorted(by_count.items()):
        if count != most:
            lines.append(f"* {count} of 5: {', '.join(which)}.")
    for (name, model), row in rows.items():
        if "error" in row:
            lines.append(f"* `{model}` has no figures on {name}: {row['error']}.")
    for model, sets in result["outdated"].items():
        lines.append(f"* `{model}` was measured before its code last changed: {', '.join(sets)}.")
    for model in result["models"]:
        missing = [name for name in result["sets"] if not rows.get((name, model))]
        if missing:
            which = "any set" if len(missing) == len(result["sets"]) else ", ".join(missing)
            lines.append(f"* `{model}` was not run on {which}.")
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_page(results: Path, page_path: Path = PAGE) -> None:
    """Write the page of a file of results."""
    page_path.write_text(page(json.loads(results.read_text())), encoding="utf-8")
