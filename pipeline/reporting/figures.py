"""Static pictures of the page and of ``report.pdf``: maps, fit, calibration, residuals."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import shapely
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from geo.writers.colours import Scale
from geo.writers.raster_files import RasterFiles
from pipeline.config.level_schema import PIXELS
from pipeline.config.schema import Config
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.reporting.borders import Borders
from pipeline.reporting.encode import png
from pipeline.reporting.preview import (
    BLUE,
    FIT_PICTURES,
    INK,
    MUTED,
    RED,
    Overview,
    Panel,
    draw_legend,
    draw_map,
    draw_scale_bar,
    prepare_plot,
    titled,
)
from pipeline.reporting.tables import targeting_curve

DPI = 130
AT = 20  # percent of people whose cases the picture of targeting names
#: Colours of residuals, in predictive standard deviations.
RESIDUALS = Scale(
    (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0),
    ("#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b"),
)


@dataclass(frozen=True)
class Drawn:
    """A picture: its key, a title, a text for who cannot see it, and the figure.

    ``png`` is the figure as a PNG, where it has been made before.
    """

    key: str
    title: str
    alt: str
    figure: Figure
    png: bytes | None = None

    @property
    def uri(self) -> str:
        """The picture as a PNG, as a ``data:`` address."""
        data = png(self.figure, DPI) if self.png is None else self.png
        return "data:image/png;base64," + base64.b64encode(data).decode()


def draw_raster(path: Path, panel: Panel, files: RasterFiles, borders: Borders) -> Figure:
    """Draw a raster with the borders of the areas, for print."""
    shown = Overview.read(files, path, 1000)
    figure = new_figure(6.2, 6.2 * shown.tall(0.4, 1.9) * 0.9 + 1.1)
    axes = figure.add_axes((0.03, 0.03, 0.94, 0.89))
    draw_map(axes, shown, borders.rings(path, shown.extent), panel)
    draw_scale_bar(axes, shown)
    return figure


def draw_fit(config: Config, areas: Any) -> Drawn:
    """Draw what was observed beside what was fitted."""
    figure = new_figure(6.2, 5.8)
    axes = figure.add_axes((0.13, 0.11, 0.84, 0.82))
    response = config.response_kind
    picture = FIT_PICTURES[response.fit_picture]
    picture.draw(axes, areas, response)
    return Drawn("fit", picture.title, response.fill(picture.alt), figure)


def draw_calibration(evaluation: Mapping[str, Any]) -> Drawn | None:
    """Draw the share of areas inside intervals of each level; None where there are no intervals."""
    lines = list(coverage_lines(evaluation))
    if not lines:
        return None
    figure = new_figure(6.2, 5.8)
    axes = figure.add_axes((0.13, 0.11, 0.84, 0.82))
    prepare_plot(
        axes,
        "Calibration of intervals",
        "level of the interval (probability)",
        "intervals that cover (share)",
    )
    axes.plot([0, 1], [0, 1], color=INK, lw=0.8, label="calibrated")
    for (label, points), colour, marker in zip(
        lines, (BLUE, RED, "#4d7c3a", MUTED), "osD^", strict=False
    ):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, marker=marker, ms=5, lw=1.2, label=label)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    draw_legend(axes, "intervals of", "upper left")
    alt = (
        "Line plot: the share of intervals that cover what they should, against their level. "
        "A line on the diagonal is calibrated; below it, intervals are too short."
    )
    return Drawn("calibration", "Calibration", alt, figure)


def draw_targeting(config: Config, found: pd.DataFrame | None, verdict: str) -> Drawn | None:
    """Draw the share of cases that the people of highest rate hold; None without the table."""
    table = targeting_curve(found)
    if table is None:
        return None
    words = config.response_kind
    unit = words.weight_unit
    figure = new_figure(6.2, 6.0)
    axes = figure.add_axes((0.13, 0.1, 0.84, 0.79))
    x_label = f"{unit} taken, highest mean {words.quantity} first (%)"
    prepare_plot(axes, "", x_label, f"expected {words.total} reached (%)")
    figure.text(
        0.03, 0.975, f"{titled(config)}: targeting", size=12, weight="bold", color=INK, va="top"
    )
    figure.text(0.03, 0.935, verdict, size=8, color=MUTED, va="top")
    axes.plot([0, 100], [0, 100], color=INK, lw=0.8, label="at random")
    for n, (level, own) in enumerate(table.groupby("level", sort=False)):
        colour = (BLUE, RED, "#4d7c3a", "#7a4b9a", MUTED)[n % 5]
        lower, upper = own["cases_reached_lower"], own["cases_reached_upper"]
        axes.fill_between(own["percent"], lower, upper, color=colour, alpha=0.2, lw=0)
        at = own[own["percent"] == AT].iloc[0]
        ends = f"{at['cases_reached_lower']:.0f} to {at['cases_reached_upper']:.0f}"
        label = f"{'pixels' if level == PIXELS else level}: {at['cases_reached']:.0f} % ({ends})"
        axes.plot(own["percent"], own["cases_reached"], color=colour, lw=1.4, label=label)
    axes.axvline(AT, color=MUTED, lw=0.8)
    axes.set(xlim=(0, 100), ylim=(0, 101))
    interval = f"{100 * config.output.interval:g} % intervals"
    draw_legend(axes, f"reached with {AT} % of the {unit}, {interval}", "lower right")
    alt = (
        f"Line plot: share of the {words.total} reached against the share of the {unit} who are "
        "taken, those with the highest rate first, by level. The table has the numbers."
    )
    return Drawn("targeting", "Targeting", alt, figure)


def coverage_lines(
    evaluation: Mapping[str, Any],
) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the coverage of intervals by level, of hidden areas, regions and simulations."""
    lines = []
    held = evaluation.get("held_out") or {}
    for scheme, words in (("area", "hidden areas"), ("block", "hidden regions")):
        levels = ((held.get(scheme) or {}).get("model") or {}).get("intervals") or {}
        lines.append((words, [(float(k), v.get("coverage")) for k, v in levels.items()]))
    simulated = (evaluation.get(CALIBRATION) or {}).get("pixels") or {}
    levels = simulated.get("coverage") or {}
    lines.append(("pixels, in simulations", [(float(k), v) for k, v in levels.items()]))
    kept = [(words, [p for p in points if p[1] is not None]) for words, points in lines]
    return [(words, sorted(points)) for words, points in kept if points]


def draw_residuals(shapes: np.ndarray, residual: np.ndarray) -> Drawn:
    """Draw the residual of each area on the map."""
    left, bottom, right, top = shapely.total_bounds(shapes)
    tall = float(np.clip((top - bottom) / (right - left), 0.4, 1.9))
    figure = new_figure(6.2, 6.2 * tall * 0.9 + 1.1)
    axes = figure.add_axes((0.03, 0.1, 0.94, 0.83))
    fill_areas(
        axes, shapes, [RESIDUALS.colour(v) if np.isfinite(v) else "#ffffff" for v in residual]
    )
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    title = "Residuals of the areas, in predictive standard deviations"
    axes.set_title(title, loc="left", y=1.0, size=11.5, color=INK, pad=7)
    for n, (value, colour) in enumerate(zip(RESIDUALS.breaks, RESIDUALS.colours, strict=True)):
        at = 0.06 + 0.125 * n
        patch = {"facecolor": colour, "edgecolor": MUTED, "linewidth": 0.5}
        figure.patches.append(_box(figure, at, patch))
        figure.text(at + 0.055, 0.025, _signed(value), size=8.5, color=INK, ha="center")
    alt = (
        "Map of the residual of each area: observed less fitted, in predictive standard "
        "deviations. Red areas have more than the model expects, blue areas less."
    )
    return Drawn("residuals", "Residual map", alt, figure)


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "\u2212")


def _box(figure: Figure, left: float, style: dict[str, Any]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, 0.055), 0.11, 0.022, transform=figure.transFigure, **style)


def fill_areas(axes: Axes, shapes: np.ndarray, colours: list[str]) -> None:
    """Draw polygons (n_area,), each in its colour."""
    polygons, faces = [], []
    # The largest first: an area may lie in a hole of another.
    for n in np.argsort(-shapely.area(shapes)):
        shape, colour = shapes[n], colours[n]
        for part in getattr(shape, "geoms", [shape]):
            if part.is_empty or part.geom_type != "Polygon":
                continue
            polygons.append(np.asarray(part.exterior.coords)[:, :2])
            faces.append(colour)
    axes.add_collection(PolyCollection(polygons, facecolors=faces, edgecolors=INK, linewidths=0.25))


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of so many inches."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure
