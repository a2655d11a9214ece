"""The map of probabilities at a glance: where, how sure, and how the areas were told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize

from pipeline.preview import INK, MUTED, draw_map, lay_out, outlines, read_overview, scale_bar

COLOURS = {0: "#2c5f8a", 1: "#c8553d"}


def render_label_preview(directory: Path, destination: Path, name: str, interval: float) -> None:
    """Draw ``preview.png`` from the overviews of the rasters and the areas of a directory.

    Parameters
    ----------
    directory : Path
        With ``areas.gpkg`` and, of a model that predicts pixels, ``probability_mean.tif`` and
        ``probability_sd.tif``; without them nothing is drawn.
    destination : Path
        The PNG.
    name : str
        Title.
    interval : float
        Central probability of the intervals in ``areas.gpkg``.
    """
    if not (directory / "probability_mean.tif").is_file():
        return
    mean, extent, aspect, crs = read_overview(directory / "probability_mean.tif")
    sd, *_ = read_overview(directory / "probability_sd.tif")
    areas = pyogrio.read_dataframe(directory / "areas.gpkg").to_crs(crs)
    lines = outlines(areas, extent)
    figure, (left, middle, right) = lay_out(name, extent, aspect)
    known = mean[np.isfinite(mean)]
    # Around one half where both sides of it occur; else what differences there are.
    both = known.size > 0 and np.quantile(known, 0.995) > 0.5
    colours, norm = ("RdYlBu_r", Normalize(0, 1)) if both else ("magma_r", None)
    title = "Probability to be positive"
    draw_map(left, mean, extent, aspect, lines, colours, title, "mean of the posterior", norm)
    draw_map(
        middle, sd, extent, aspect, lines, "YlGnBu", "Uncertainty of the probability",
        "standard deviation",
    )  # fmt: skip
    scale_bar(left, extent, crs)
    _draw_areas(right, areas[np.isfinite(areas["probability"])], interval)
    figure.savefig(destination, metadata={"Software": None, "Title": name})


def _draw_areas(axes: Axes, areas: Any, interval: float) -> None:
    """Areas from the least to the most probable, coloured by what was observed."""
    areas = areas.sort_values("probability")
    rank = np.arange(1, len(areas) + 1)
    p, y = areas["probability"].to_numpy(), areas["observed"].to_numpy()
    ends = areas[["probability_lower", "probability_upper"]].to_numpy()
    axes.set_title("Areas: observed label and probability", loc="left", size=11.5, color=INK, pad=7)
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK)
    axes.set_xlabel("areas, by probability", size=9, color=MUTED)
    axes.set_ylabel("probability to be positive", size=9, color=MUTED)
    axes.set(ylim=(-0.02, 1.02), xlim=(0, len(areas) + 1))
    bars = np.stack([np.repeat(rank[:, None], 2, axis=1), ends], axis=2)
    axes.add_collection(LineCollection(list(bars), colors="#9aa3b2", linewidths=0.7, alpha=0.6))
    size = float(np.interp(len(areas), [50, 2000], [22, 7]))
    for label, word in ((1, "positive"), (0, "negative")):
        chosen = y == label
        axes.scatter(
            rank[chosen], p[chosen], s=size, color=COLOURS[label], linewidths=0.3,
            edgecolors="white", zorder=3, label=f"observed {word} ({int(chosen.sum())})",
        )  # fmt: skip
    legend = axes.legend(
        title=f"bars: central {interval:.0%} of the posterior",
        loc="best", frameon=False, labelcolor=INK, fontsize=8.5, title_fontsize=8.5,
        handletextpad=0.2,
    )  # fmt: skip
    legend.get_title().set_color(MUTED)
    legend._legend_box.align = "left"  # type: ignore[attr-defined]
