"""Draw the targeting curves: cases reached by people taken."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pipeline.config.level_schema import PIXELS
from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config
from pipeline.prediction.preview import BLUE, INK, MUTED, RED

AT = 20  # percent of people whose cases the picture names
_COLOURS = (RED, BLUE, "#3f8f63", "#8a5fa8", "#b08a2e", "#4aa3b5")


def render_targeting(config: Config, table: pd.DataFrame, path: Path) -> None:
    """Write the picture of a table of targeting.

    Parameters
    ----------
    config : Config
    table : DataFrame
        From :func:`pipeline.prediction.targeting.targeting_table`.
    path : Path
        The PNG.
    """
    words = ResponseWords.of(config)
    figure = Figure(figsize=(8.2, 6.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=(0, (4, 3)))
    axes.text(71, 66, "everybody alike", color=MUTED, rotation=36, fontsize=9)
    names = list(dict.fromkeys(table["level"]))
    for name, colour in zip(names, _COLOURS * (1 + len(names) // len(_COLOURS)), strict=False):
        rows = table[table["level"] == name]
        at = rows[rows["percent"] == AT].iloc[0]
        ends = f"{at['cases_reached_lower']:.0f} to {at['cases_reached_upper']:.0f}"
        label = f"{'pixels' if name == PIXELS else name}: {at['cases_reached']:.0f} % ({ends})"
        lower, upper = rows["cases_reached_lower"], rows["cases_reached_upper"]
        axes.fill_between(rows["percent"], lower, upper, color=colour, alpha=0.2, lw=0)
        axes.plot(rows["percent"], rows["cases_reached"], color=colour, lw=1.6, label=label)
    axes.axvline(AT, color=MUTED, lw=0.8)
    legend = axes.legend(
        loc="lower right",
        frameon=False,
        title=f"{words.total} reached with {AT} % of the {words.weight_unit}",
    )
    legend.get_title().set_color(INK)
    axes.set(
        xlim=(0, 100),
        ylim=(0, 100),
        xlabel=f"{words.weight_unit} taken, highest mean {words.quantity} first (%)",
        ylabel=f"expected {words.total} reached (%)",
    )
    axes.set_title(
        f"{config.name}{f', {config.period}' if config.period else ''}: targeting, with "
        f"{100 * config.output.interval:g} % intervals",
        loc="left",
        color=INK,
    )
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Software": None})
