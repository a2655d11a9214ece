"""The page of evidence, from the figures of all benchmarks.

    python -m benchmarks.evidence [--page docs/evidence.md] [--picture docs/figures/evidence.png]

Nothing is run. The page is a template (``evidence.md.jinja``) in which every measured number is an
expression that reads a file of ``benchmarks/results``; each table names its file, with the version
of the code that gave it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from benchmarks import peer_svgp, sbc_page, trust
from benchmarks.peers import CONTESTANTS, ahead
from benchmarks.performance_page import TARGETS, TITLES, reached
from benchmarks.report import RESULTS, parsed

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_name("evidence.md.jinja")
PAGE, PICTURE = ROOT / "docs/evidence.md", ROOT / "docs/figures/evidence.png"
WORDS = {
    "linear": "linear effects",
    "bent": "nonlinear effects",
    "rough": "a rougher field",
    "weak": "30 cases an area",
    "noise": "noise between areas",
}
#: Of Madagascar: words, where ours and R's are, digits, and whether lower is better.
SCORES = tuple(
    (f"{words}, by the {of}", (of, name), digits, low)
    for of in ("mean", "median")
    for words, name, digits, low in (
        ("rate: mean absolute error", "rate_mae", 4, True),
        ("rate: RMSE", "rate_rmse", 4, True),
        ("rate: correlation", "rate_correlation", 3, False),
        ("counts: mean absolute error", "count_mae", 0, True),
        ("counts: Spearman", "spearman", 2, False),
        ("log counts: RMSE", "log_count_rmse", 3, True),
    )
)

#: Of peers: name where one is best, score, digits.
PEER_SCORES = (
    ("correlation", "correlation", 3),
    ("RMSE", "rmse", 3),
    ("CRPS", "crps", 3),
    ("log density", "log_density", 3),
    ("coverage", "coverage", 2),
    ("", "seconds", 1),
    ("", "mebibytes", 0),
)


@cache
def figures(name: str) -> dict[str, Any]:
    """Return what a file of figures holds."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def source(name: str) -> str:
    """Return a file's name, and the version of the code that gave it."""
    code = figures(name).get("code")
    known = isinstance(code, dict) and "version" in code
    return f"`{name}.json`, " + (f"code {code['version']}" if known else "earlier code")


def records(name: str, design: str) -> list[dict[str, Any]]:
    """Return the records of a design's grids that were fitted with the defaults."""
    rows = figures(name)["records"]
    return [row for row in rows if row["label"] == "now" and row["design"] == design]


def mean(name: str, design: str, *keys: str) -> float:
    """Return the mean of a figure over the grids of a design, fitted with the defaults."""
    found = []
    for row in records(name, design):
        value: Any = row
        for key in keys:
            value = value[key]
        found.append(value)
    return float(np.mean(found))


def _named(design: str) -> str:
    truth, number, *more = design.split("-")
    return ", ".join([f"{number} areas", WORDS[truth], *(WORDS[each] for each in more)])


def _better(ours: float, theirs: float, digits: int, low: bool) -> str:
    both = [f"{each:,.{digits}f}" for each in (ours, theirs)]
    if both[0] != both[1]:
        best = 0 if (ours < theirs) == low else 1
        both[best] = f"**{both[best]}**"
    return " | ".join(both)


def _madagascar() -> list[tuple[Any, ...]]:
    held = figures("madagascar")
    rows: list[tuple[Any, ...]] = [
        (words, held[of][name], held["peer"][of][name], digits, low)
        for words, (of, name), digits, low in SCORES
    ]
    covers = held["cover_90"], held["peer"]["cover_90"]
    return [*rows, ("90 % predictive intervals cover", *covers, 2, False)]


def _peers() -> list[tuple[str, list[list[str]], str]]:
    """Return, for each kind of country, its name, the rows of its table, and where ours loses."""
    found = []
    for design, table in figures("peers")["means"].items():
        lines = []
        for name, row in table.items():
            cells = [CONTESTANTS[name].words]
            for title, key, digits in PEER_SCORES:
                text = "none" if row[key] is None else f"{row[key]:,.{digits}f}"
                best = title and row[key] is not None and not ahead(table, key, name)
                cells.append(f"**{text}**" if best else text)
            lines.append(cells)
        lost = [
            f"{title} to {', '.join(CONTESTANTS[name].words for name in first)}"
            for title, key, _ in PEER_SCORES
            if title and (first := ahead(table, key))
        ]
        found.append((WORDS[design], lines, "; ".join(lost) or "nowhere"))
    return found


def _targets() -> list[tuple[str, str, str, str]]:
    designs = figures("performance")["designs"]
    rows = []
    for name, row, figure, most, words in TARGETS:
        found = reached(designs.get(name, {}), row, figure)
        text = "not measured" if found is None else f"{found:.3g}"
        rows.append((TITLES[name], words, f"{most:g}", text))
    return rows


def _clusters() -> dict[str, Any]:
    found = figures("madagascar_points")
    return {**found, "seeds": len({row["seed"] for row in found["records"]})}


def values() -> dict[str, Any]:
    """Return what the template's expressions read."""
    noisy = sorted({r["design"] for r in figures("noise")["records"] if r["label"] == "now"})
    large, far = figures("performance")["designs"]["country"], figures("hundred_million")["stages"]
    return {
        "source": source,
        "mean": mean,
        "count": lambda name, design: len(records(name, design)),
        "named": _named,
        "better": _better,
        "designs": [name for name in figures("designs")["designs"] if records("designs", name)],
        "worlds": [mean("noise", name, "pixels", "coverage", "0.9") for name in noisy],
        "gold": figures("gold")["poisson"],
        "noisy": figures("gold")["noisy-40"],
        "madagascar": _madagascar(),
        "elevators": figures("elevators"),
        "months": figures("months"),
        "m": lambda name: figures("months")["summary"][name]["mean"],
        "vietnam": figures("vietnam"),
        "cost": figures("months_cost"),
        "points": figures("points")["means"]["1"],
        "zones": figures("zones")["means"]["areas"],
        "clusters": _clusters(),
        "changes": figures("area_changes"),
        "roll": figures("swiss_roll")["poisson"]["bags"]["points"],
        "censored": figures("censored")["80"]["mean"],
        "peers": _peers(),
        "svgp": peer_svgp,
        "peer_grids": len({row["grid"] for row in figures("peers")["records"]}),
        "peer_versions": figures("peers")["versions"],
        "targets": _targets(),
        "country": large,
        "hundred": far,
        "gpu": figures("gpu"),
        "trust": figures("trust"),
        "trust_table": trust.table(figures("trust")["worlds"]),
        "ranks": sbc_page.rows_of(),
        "likelihoods": sbc_page.WORDS,
    }


def render() -> str:
    """Return the page."""
    loader = jinja2.FileSystemLoader(TEMPLATE.parent)
    page = jinja2.Environment(  # Markdown, of our own figures: nothing to escape
        loader=loader,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    page.filters["f"] = lambda value, digits: f"{value:,.{digits}f}"
    page.filters["pc"] = lambda value: f"{100 * value:.0f} %"
    lines = page.get_template(TEMPLATE.name).render(values()).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def draw(path: Path) -> None:
    """Draw the bars that tell most: what each method reaches."""
    from matplotlib.figure import Figure

    held, vietnam, months = figures("madagascar"), figures("vietnam"), figures("months")["summary"]
    names = ("space_time", "autoregression", "last_value", "seasonal_mean", "regression")
    panels = [
        (
            "Held-out districts, Madagascar:\nshare that 90 % intervals cover",
            {"disagg": held["cover_90"], "R disaggregation": held["peer"]["cover_90"]},
            0.9,
        ),
        (
            "Dengue in Vietnam, forecasts:\nCRPS, lower is better",
            {_bar(name): vietnam["summary"][name]["crps"] for name in names},
            None,
        ),
        (
            "Pixels of the last of 24 months:\ncorrelation with the truth",
            {
                "disagg": months["space_time.correlation"]["mean"],
                "that month alone": months["one_month.correlation"]["mean"],
            },
            None,
        ),
    ]
    figure = Figure((11, 2.8), layout="constrained")
    for axes, (title, bars, line) in zip(figure.subplots(1, 3), panels, strict=True):
        labels = list(bars)[::-1]
        colours = ["#1b6e6e" if label == "disagg" else "#b8bec4" for label in labels]
        drawn = axes.barh(labels, [bars[label] for label in labels], color=colours)
        axes.bar_label(drawn, fmt=lambda value: f"{value:.3g}", padding=3)
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.margins(x=0.18)
        if line is not None:
            axes.axvline(line, color="#a03030", lw=1, ls="--")
    figure.savefig(path, dpi=110)


def _bar(name: str) -> str:
    return "disagg" if name == "space_time" else name.replace("_", " ")


def main() -> None:
    """Write the page and its picture."""
    options = parsed(__doc__, page=PAGE, picture=PICTURE)
    options.page.write_text(render(), encoding="utf-8")
    draw(options.picture)


if __name__ == "__main__":
    main()
