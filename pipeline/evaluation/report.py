"""Format an evaluation as text tables: a row for each score, a column for each comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from geo.core.text_safety import markdown_text
from pipeline.config.schema import Config
from pipeline.core.plurals import count_text
from pipeline.core.text_tables import text_console, text_table
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.calibration_summary import LIMIT, calibration_line, calibration_table
from pipeline.evaluation.choices import choices_parts
from pipeline.evaluation.trust_report import checks_table, trust_lines
from pipeline.evaluation.verdict import KEY

_LINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("NLL per area, nats", ("nll",)),
    ("NLL per area, by moments", ("nll_moments",)),
    ("Poisson deviance per area", ("poisson_deviance",)),
    ("CRPS, {area_total}", ("crps",)),
    ("{totals}: RMSE", ("counts", "rmse")),
    ("{totals}: MAE", ("counts", "mae")),
    ("{totals}: correlation", ("counts", "correlation")),
    ("{rates}: RMSE", ("rates", "rmse")),
    ("{rates}: MAE", ("rates", "mae")),
    ("{rates}: correlation", ("rates", "correlation")),
    ("{rates}: rank correlation", ("rates", "spearman")),
    ("log {totals}: RMSE", ("log_counts", "rmse")),
    ("by {weight_unit}: NLL, nats", ("by_people", "nll")),
    ("by {weight_unit}: {rates}: RMSE", ("by_people", "rates", "rmse")),
    ("by {weight_unit}: {rates}: MAE", ("by_people", "rates", "mae")),
    ("by {weight_unit}: {rates}: correlation", ("by_people", "rates", "correlation")),
)


def render_report(report: dict[str, Any], what: str = "areas") -> str:
    """Write an evaluation as text: the verdict in the first line, then tables.

    Parameters
    ----------
    report : dict
        As in ``evaluation.json``.
    what : str
        Name of the bags in the title.
    """
    console = text_console()
    labels = "auc" in report["in_sample"]
    if KEY in report:
        console.print(report[KEY]["sentence"], soft_wrap=True, markup=False, highlight=False)
    console.print(label_table(report, what) if labels else area_table(report))
    if "truth" in report:
        table = label_truth_table if labels else truth_table
        console.print(table(report["truth"]))
    if "predictive_checks" in report:
        console.print(checks_table(report["predictive_checks"]))
    for part in choices_parts(report):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    for line in trust_lines(report):
        console.print(line, soft_wrap=True, highlight=False)
    for part in _calibration(report):
        console.print(part, soft_wrap=isinstance(part, str), markup=False, highlight=False)
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def _calibration(report: dict[str, Any]) -> list[Any]:
    """Return what refits to simulated data say: a table, or why there is none, and cautions."""
    found = report.get(CALIBRATION) or {}
    said: list[Any] = [f"caution: {text}" for text in found.get("cautions", [])]
    if "pixels" not in found:
        line = calibration_line(report)
        return [*([] if line is None or "auc" in report["in_sample"] else [line]), *said]
    n = found["n_simulations"]
    title = f"calibration: {count_text(n, 'refit')} to data simulated from the map"
    empty = text_table(title, "true rates\nby pixel", "true rates\nby people", "areas")
    return [calibration_table(found, empty), LIMIT, *said]


def _suppressed(report: dict[str, Any]) -> str:
    """Say how many counts are suppressed; empty where none is."""
    n = report["in_sample"].get("n_suppressed", 0)
    return f" ({n:,} suppressed: in log densities and coverage, in no error)" if n else ""


def area_table(report: dict[str, Any]) -> Table:
    """Return the scores of areas: in sample, held out, and of a constant rate."""
    columns = _held_out_columns(report)
    table = text_table(
        f"{report['name']}: {report['n_areas']} areas{_suppressed(report)}",
        *(heading for heading, _ in columns),
    )
    for name, path in _LINES:
        if path[0] not in report["in_sample"]:  # of responses that are no counts
            continue
        title = name.format(**_words(report))
        table.add_row(title, *(_number(_at(scores, path)) for _, scores in columns))
    by_area = report["held_out"].get("area", {}).get("pit_p")
    if by_area is not None:
        own = {"held out\nby area": _number(by_area)}
        table.add_row("transforms are uniform, p", *(own.get(title, "-") for title, _ in columns))
    for level in report["in_sample"]["intervals"]:
        path = ("intervals", level, "coverage")
        table.add_row(
            f"{100 * float(level):g} % interval covers",
            *(_percent(_at(scores, path)) for _, scores in columns),
        )
    weight = _words(report)["weight_unit"]
    for level in report["in_sample"].get("by_people", {}).get("coverage", {}):
        path = ("by_people", "coverage", level)
        table.add_row(
            f"by {weight}: {100 * float(level):g} % interval covers",
            *(_percent(_at(scores, path)) for _, scores in columns),
        )
    return table


_LABEL_LINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("AUC", ("auc",)),
    ("average precision", ("average_precision",)),
    ("accuracy", ("accuracy",)),
    ("F1", ("f1",)),
    ("log loss, nats", ("log_loss",)),
    ("Brier score", ("brier",)),
    ("calibration error", ("calibration", "error")),
    ("share of positives", ("positive",)),
    ("by people: AUC", ("by_people", "auc")),
    ("by people: log loss, nats", ("by_people", "log_loss")),
    ("by people: Brier score", ("by_people", "brier")),
)


def label_table(report: dict[str, Any], what: str) -> Table:
    """Return the scores of labels: in sample, held out, and of a constant share."""
    columns = _held_out_columns(report)
    if "instances" in report:
        columns.append(("instances", report["instances"]))
    title = f"{report['name']}: {report['n_areas']:,} {what}"
    table = text_table(title, *(heading for heading, _ in columns))
    for name, path in _LABEL_LINES:
        if path[0] in report["in_sample"]:
            table.add_row(name, *(_number(_at(scores, path)) for _, scores in columns))
    return table


def _truth_title(truth: dict[str, Any]) -> str:
    return f"truth: {truth['n_pix']:,} pixels of the areas in the fit (on a border: of each)"


def label_truth_table(truth: dict[str, Any]) -> Table:
    """Return the scores of pixels against their true labels, and those of the areas' labels."""
    table = text_table(
        _truth_title(truth),
        "model\nall areas",
        "model\nby people",
        "model\npositive areas",
        "area's label\nall areas",
    )
    for name, path in _LABEL_LINES:
        if path[0] not in truth["pixels"]:
            continue
        flat = truth["area_label"].get(path[0])
        ways = [_number(_at(truth[way], path)) for way in ("pixels", "people", "positive_areas")]
        table.add_row(name, *ways, _number(flat))
    return table


def truth_table(truth: dict[str, Any]) -> Table:
    """Return the scores of pixels against the truth, and those of the areas' observed rates."""
    table = text_table(
        _truth_title(truth),
        "model\nby pixel",
        "model\nby people",
        "observed rate\nby pixel",
        "observed rate\nby people",
        "one rate\nby pixel",
        "one rate\nby people",
    )
    ways = (truth["pixels"], truth["people"])
    for name, path in (
        ("log rate: correlation", ("log_rate", "correlation")),
        ("log rate: RMSE", ("log_rate", "rmse")),
        ("log rate: bias", ("log_rate", "bias")),
        ("rate: RMSE", ("rate", "rmse")),
    ):
        model = [_number(_at(way, path)) for way in ways]
        flat = [
            _number(_at(way[name], path)) for name in ("observed_rate", "one_rate") for way in ways
        ]
        table.add_row(name, *model, *flat)
    table.add_row(
        "log rate within areas: correlation",
        *(_number(way["within_areas"]["correlation"]) for way in ways),
        *"----",
    )
    for level in truth["pixels"]["coverage"]:
        table.add_row(
            f"{100 * float(level):g} % interval covers",
            *(_percent(way["coverage"][level]) for way in ways),
            *"----",
        )
    return table


def _words(report: dict[str, Any]) -> dict[str, str]:
    """Return the words for the response; a report of an earlier version has none."""
    known = {"area_total": "cases", "totals": "counts", "rates": "rates", "weight_unit": "people"}
    return known | report.get("response", {})


def _held_out_columns(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    columns = [("in sample", report["in_sample"])]
    for scheme, held_out in report["held_out"].items():
        if "model" in held_out:
            columns.append((f"held out\nby {scheme}", held_out["model"]))
            columns.append((f"constant\nby {scheme}", held_out["constant"]))
    return columns


def _at(scores: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = scores
    for key in path:
        value = None if value is None else value.get(key)
    return value


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def evaluation_table(config: Config) -> str:
    """Return ``evaluation.json`` as Markdown: the verdict, and a table of scores.

    The table has the scores in sample, and those held out by each scheme.
    """
    file = config.output.dir / "evaluation.json"
    report = json.loads(file.read_text(encoding="utf-8"))
    columns: list[tuple[str, dict[str, Any]]] = [("in sample", report.get("in_sample") or {})]
    for scheme, held in report.get("held_out", {}).items():
        for who in ("model", "constant"):
            name = f"held out by {scheme}" + (", constant" if who == "constant" else "")
            if held.get(who):
                columns.append((name, held[who]))
    rows = []
    words = {name: markdown_text(word) for name, word in _words(report).items()}
    for title, path in _ROWS:
        values = [_at(scores, path) for _, scores in columns]
        if any(value is not None for value in values):
            rows.append([title.format(**words), *(cell(value) for value in values)])
    table = markdown_table(["", *(name for name, _ in columns)], rows)
    sentence = (report.get(KEY) or {}).get("sentence")
    table = table if sentence is None else f"**{sentence}**\n\n{table}"
    line = calibration_line(report)
    said = (report.get(CALIBRATION) or {}).get("cautions", [])
    lines = [*([] if line is None else [line]), *(f"caution: {text}" for text in said)]
    return "\n\n".join([table, *(markdown_text(each) for each in lines)])


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table as Markdown."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("NLL per area, nats", ("nll",)),
    ("log loss per area, nats", ("log_loss",)),
    ("{rates}: correlation", ("rates", "correlation")),
    ("{rates}: RMSE", ("rates", "rmse")),
    ("{totals}: MAE", ("counts", "mae")),
    ("AUC", ("auc",)),
    ("Brier score", ("brier",)),
    ("50 % intervals hold", ("intervals", "0.5", "coverage")),
    ("90 % intervals hold", ("intervals", "0.9", "coverage")),
    ("by {weight_unit}: {rates}: MAE", ("by_people", "rates", "mae")),
    ("by {weight_unit}: {rates}: correlation", ("by_people", "rates", "correlation")),
    ("by {weight_unit}: 90 % intervals hold", ("by_people", "coverage", "0.9")),
    ("by people: log loss, nats", ("by_people", "log_loss")),
)


def cell(value: Any) -> str:
    """Write a value as a cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:,.4g}"
