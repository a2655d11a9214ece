"""Tables and figure of the fixed designs, from their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.designs import DESIGNS, Key, Record

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs/figures/designs.png"
PAGE = ROOT / "docs/calibration.md"
LABELS = ("before", "now")  # in this order, then any others
BAND = (0.86, 0.94)  # what 90 % intervals should cover, averaged over grids
FEW = 10  # grids, below which a row says so

Figure = Callable[[Record], float | None]


def _mean_square_z(record: Record) -> float | None:
    z = [each["z"] for each in record["slopes"] if each["z"] is not None]
    return float(np.mean(np.square(z))) if z else None


def _ratio(record: Record) -> float | None:
    found = record["range_km"]
    return None if found is None else float(np.log(found / record["true_range_km"]))


COVERAGE: dict[str, Figure] = {
    "pixels": lambda r: r["pixels"]["coverage"]["0.9"],
    "people": lambda r: r["pixels"]["coverage_people"]["0.9"],
    "areas": lambda r: r["areas"]["coverage"]["0.9"],
    "50 %": lambda r: r["pixels"]["coverage"]["0.5"],
    "80 %": lambda r: r["pixels"]["coverage"]["0.8"],
    "95 %": lambda r: r["pixels"]["coverage"]["0.95"],
}
ACCURACY: dict[str, Figure] = {
    "correlation": lambda r: r["pixels"]["correlation"],
    "RMSE": lambda r: r["pixels"]["rmse"],
    "CRPS": lambda r: r["pixels"]["crps"],
    "Brier, mean": lambda r: r["pixels"]["brier"]["1"],
    "Brier, twice": lambda r: r["pixels"]["brier"]["2"],
}
LEARNT: dict[str, Figure] = {
    "log of range over true": _ratio,
    "z^2 of slopes": _mean_square_z,
    "total": lambda r: r["areas"]["total"],
    "converged": lambda r: float(r["fit"]["converged"]),
    "processor s": lambda r: r["seconds"]["fit"],
}


def summary(records: list[Record], figure: Figure) -> tuple[float, float, int]:
    """Return mean, standard error and number of a figure over grids.

    The error is NaN for fewer than two grids.
    """
    values = np.array([v for v in map(figure, records) if v is not None], dtype=np.float64)
    if not values.size:
        return float("nan"), float("nan"), 0
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else float("nan")
    return float(values.mean()), float(error), values.size


def labels_of(records: Mapping[Key, Record]) -> list[str]:
    """Return the labels, ``before`` and ``now`` first."""
    found = {key[0] for key in records}
    return [each for each in LABELS if each in found] + sorted(found - set(LABELS))


def grids_of(records: Mapping[Key, Record], label: str, design: str) -> list[Record]:
    """Return the records of a label and design, by grid."""
    return [records[key] for key in sorted(records) if key[:2] == (label, design)]


def table(records: Mapping[Key, Record], figures: Mapping[str, Figure]) -> str:
    """Return a Markdown table: a row for each design and label, mean and standard error."""
    rows = [
        "| design | code | grids | " + " | ".join(figures) + " |",
        "|---|---|---|" + "---|" * len(figures),
    ]
    for design in DESIGNS:
        for label in labels_of(records):
            grids = grids_of(records, label, design)
            if grids:
                cells = [_cell(*summary(grids, figure)) for figure in figures.values()]
                rows.append(f"| {design} | {label} | {len(grids)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def differences(records: Mapping[Key, Record]) -> str:
    """Return a Markdown table of ``now`` less ``before`` over the grids that both have.

    The error is that of the mean of the grids' differences: the surfaces are the same.
    """
    figures = {
        **{k: COVERAGE[k] for k in ("pixels", "people", "areas")},
        **{k: ACCURACY[k] for k in ("correlation", "RMSE", "CRPS")},
    }
    rows = []
    for design in DESIGNS:
        old, new = ({r["grid"]: r for r in grids_of(records, k, design)} for k in LABELS)
        both = sorted(old.keys() & new.keys())
        if both:
            pairs: list[Record] = [{"old": old[k], "new": new[k]} for k in both]
            cells = [_cell(*summary(pairs, _change(figure))) for figure in figures.values()]
            rows.append(f"| {design} | {len(both)} | " + " | ".join(cells) + " |")
    if not rows:
        return "No grid has figures under both labels."
    head = ["| design | grids | " + " | ".join(figures) + " |", "|---|---|" + "---|" * len(figures)]
    return "\n".join(head + rows)


def _change(figure: Figure) -> Figure:
    def change(pair: Record) -> float | None:
        old, new = figure(pair["old"]), figure(pair["new"])
        return None if old is None or new is None else new - old

    return change


def versions(records: Mapping[Key, Record]) -> str:
    """Return which code, by the hash of ``models``, and which settings made each label."""
    parts = []
    for label in labels_of(records):
        own = [record for key, record in records.items() if key[0] == label]
        code = ", ".join(sorted({each["code"] for each in own}))
        set_ = ", ".join(f"{k}: {v}" for k, v in sorted(own[0]["model"].items())) or "defaults"
        parts.append(f"`{label}` is {set_} with the code {code}")
    return ("; ".join(parts) + ".") if parts else ""


def _cell(mean: float, error: float, n: int) -> str:
    if n == 0:
        return ""
    digits = 3 if abs(mean) < 10 else 1
    shown = f"{mean:.{digits}f}"
    return shown if np.isnan(error) else f"{shown} ± {error:.{digits}f}"


def warnings(records: Mapping[Key, Record]) -> str:
    """Return a line for each design whose 90 % intervals cover too little, or too much."""
    label = next((each for each in reversed(LABELS) if each in labels_of(records)), None)
    if label is None:
        return "No design has been measured."
    low, high, fine, absent = [], [], [], []
    for name, design in DESIGNS.items():
        grids = grids_of(records, label, name)
        if not grids:
            absent.append(f"`{name}`")
            continue
        pixels, people = (summary(grids, COVERAGE[k])[0] for k in ("pixels", "people"))
        few = f"; {len(grids)} grid{'s'[: len(grids) > 1]} only" if len(grids) < FEW else ""
        line = f"* `{name}` ({_words(design)}): {pixels:.2f} of pixels, {people:.2f} of people{few}"
        worst = min(pixels, people)
        if worst < BAND[0]:
            low.append((worst, line))
        elif max(pixels, people) > BAND[1]:
            high.append((worst, line))
        else:
            fine.append((worst, line))
    parts = [f"By the figures labelled `{label}`, 90 % intervals"]
    for what, found in (
        (f"cover less than {BAND[0]:.0%}, the worst first:", low),
        (f"cover more than {BAND[1]:.0%}:", high),
        (f"cover {BAND[0]:.0%} to {BAND[1]:.0%}:", fine),
    ):
        if found:
            parts.append(what.replace("%", " %") + "\n\n" + "\n".join(x for _, x in sorted(found)))
    if absent:
        parts.append(f"Not measured under this label: {', '.join(absent)}.")
    return "\n\n".join(parts)


def _words(design: Any) -> str:
    words = [f"{design.n_area} areas", f"{design.truth} truth", f"{design.cases:g} cases an area"]
    return ", ".join(words + (["noise of areas"] if design.area_sd else []))


def write_page(records: Mapping[Key, Record], page: Path) -> None:
    """Write the generated parts of the page, between their markers.

    Raises
    ------
    ValueError
        If the page lacks a marker.
    """
    text = page.read_text(encoding="utf-8")
    for name, content in {
        "coverage": f"{table(records, COVERAGE)}\n\n{versions(records)}",
        "accuracy": table(records, ACCURACY),
        "differences": differences(records),
        "learnt": table(records, LEARNT),
        "warnings": warnings(records),
    }.items():
        start, end = f"<!-- designs: {name} -->", f"<!-- designs: end {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{page}: lacks {start} or {end}, once each; put them back")
        before, after = text.split(start)[0], text.split(end)[1]
        text = f"{before}{start}\n{content}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def draw(records: Mapping[Key, Record], path: Path) -> None:
    """Plot coverage of 90 % intervals and correlation by design and label, with two errors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    measured = {key[1] for key in records}
    designs = [name for name in DESIGNS if name in measured]
    panels = (
        ("90 % intervals cover, pixels", COVERAGE["pixels"]),
        ("... people", COVERAGE["people"]),
        ("correlation of log rate", ACCURACY["correlation"]),
    )
    fig, axes = plt.subplots(
        1, 3, figsize=(10, 1.4 + 0.32 * len(designs)), sharey=True, layout="constrained"
    )
    y = np.arange(len(designs))
    labels = labels_of(records)
    for axis, (title, figure) in zip(axes, panels, strict=True):
        for number, label in enumerate(labels):
            shift = (number - (len(labels) - 1) / 2) * 0.22
            found = [summary(grids_of(records, label, name), figure) for name in designs]
            mean, error = (np.array([each[k] for each in found]) for k in (0, 1))
            axis.errorbar(
                mean, y + shift, xerr=2 * np.nan_to_num(error), fmt="o", ms=4, lw=1, label=label
            )
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", lw=0.3)
    for axis in axes[:2]:
        axis.axvspan(*BAND, color="tab:green", alpha=0.15, lw=0)
    axes[0].set_yticks(y, designs)
    axes[0].invert_yaxis()
    handles, names = axes[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    plt.close(fig)
