"""The areas over time: what was observed, what was fitted, what is foreseen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipeline.config.schema import Config
from pipeline.products.products import PERIODS_PARQUET
from pipeline.reporting.figures import Drawn
from pipeline.reporting.preview import BLUE, INK, MUTED, RED

SHOWN, ACROSS = 12, 3  # areas, and panels beside each other
FLAG = 0.9  # probability of an outbreak from which a period is marked


def draw_series(
    config: Config, table: pd.DataFrame | None, names: Mapping[str, str]
) -> Drawn | None:
    """Draw the counts of the areas with the most, period by period; None for one period.

    Parameters
    ----------
    config : Config
    table : DataFrame or None
        Of :func:`pipeline.reporting.over_time.read_periods`.
    names : mapping of str to str
        Names of areas by id.
    """
    if table is None:
        return None
    most = table.groupby("id")["observed"].sum().sort_values(ascending=False, kind="stable")
    chosen = list(most.index[:SHOWN])
    rows = -(-len(chosen) // ACROSS)
    figure = Figure(figsize=(9.3, 1.0 + 1.75 * rows), facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, ACROSS, squeeze=False, sharex=True)
    for axes, area in zip(grid.flat, chosen, strict=False):
        _draw_area(axes, table[table["id"] == area], names.get(area, area))
    for axes in list(grid.flat)[len(chosen) :]:
        axes.set_axis_off()
    words, level = config.response_kind, f"{100 * config.output.interval:g} %"
    figure.text(
        0.02,
        0.995,
        f"Line: expected {words.total}; band: {level} interval of the count; dots: observed; red: "
        f"forecast; ring: above the upper quartile of its season with probability {FLAG:g}",
        size=8,
        color=MUTED,
        va="top",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.975))
    alt = (
        f"Small line plots, one an area, of the {len(chosen)} areas with the most {words.total}: "
        "observed counts by period with the interval of the model, and the forecast. "
        f"{PERIODS_PARQUET.file} has the numbers of all areas."
    )
    return Drawn("series", "Areas over time", alt, figure)


def _draw_area(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    at, ahead = np.arange(len(rows)), rows["forecast"].to_numpy(bool)
    start = max(0, int(ahead.argmax()) - 1) if ahead.any() else len(rows)
    for part, colour in ((slice(0, start + 1), BLUE), (slice(start, None), RED)):
        own = rows.iloc[part]
        lower, upper = own["count_lower"], own["count_upper"]
        axes.fill_between(at[part], lower, upper, color=colour, alpha=0.18, lw=0)
        axes.plot(at[part], own["mean"], color=colour, lw=1.2)
    axes.plot(at, rows["observed"], ls="none", marker="o", ms=2.6, color=INK)
    flagged = rows["outbreak"].to_numpy() >= FLAG
    axes.plot(
        at[flagged],
        rows["mean"][flagged],
        ls="none",
        marker="o",
        ms=8,
        mfc="none",
        mec=RED,
        mew=1.0,
    )
    axes.set_title(name, loc="left", y=1.0, size=9, color=INK, pad=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=7.5, color=MUTED, labelcolor=INK)
    axes.set_ylim(bottom=0)
    shown = np.unique(np.linspace(0, len(rows) - 1, 4).astype(int))
    axes.set_xticks(shown, [str(rows["period"].iloc[k]) for k in shown])
