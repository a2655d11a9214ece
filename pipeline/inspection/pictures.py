"""Pictures of the inputs: maps with histograms, correlations, areas, counts over time."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd
import rasterio.crs
import shapely
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, StrMethodFormatter

from geo.writers.colours import Scale, ramp_colours
from pipeline.inspection.seen import PEOPLE, Copies, Seen
from pipeline.reporting.borders import outlines
from pipeline.reporting.figures import Drawn, fill_areas, new_figure
from pipeline.reporting.plane import aspect_of
from pipeline.reporting.preview import (
    BLUE,
    INK,
    MUTED,
    RED,
    Overview,
    Panel,
    draw_map,
    draw_scale_bar,
    prepare_plot,
)

N_BIN = 40
N_NAMED = 45  # areas whose names the strip has
N_STRIP = 1200  # areas of the strip
N_NUMBERS = 14  # covariates beside each other whose correlations are written
# Colours of a count that is missing, of 0, and of a suppressed one.
NONE, ZERO, HIDDEN = "#d9dce2", "#f0d9a8", "#e08b4f"


def draw_layers(seen: Seen, labels: dict[str, str]) -> list[Drawn]:
    """Draw each layer on the grid, with the histogram of its pixels in areas.

    Parameters
    ----------
    seen : Seen
    labels : dict of str
        Unit of each layer.
    """
    copies, grid = seen.copies, seen.grid
    if copies is None or grid is None:
        return []
    west, south, east, north = copies.bounds
    extent, crs = (west, east, south, north), rasterio.crs.CRS.from_user_input(grid.crs)
    rings = [] if seen.shapes is None else outlines(seen.shapes, extent)
    return [
        _draw_layer(name, Overview(values, extent, crs), rings, copies, labels[name])
        for name, values in copies.values.items()
    ]


def _draw_layer(
    name: str, shown: Overview, rings: list[np.ndarray], copies: Copies, label: str
) -> Drawn:
    tall = shown.tall(0.45, 1.5)
    height = 4.2 * tall + 0.95
    figure = new_figure(4.4, height + 1.75)
    whole = height + 1.75
    axes = figure.add_axes((0.02, 1.75 / whole, 0.96, (height - 0.35) / whole))
    scale = Scale.of(shown.values)
    unit = "people per km2" if name == PEOPLE else label
    draw_map(axes, shown, rings, Panel(f"{name}, {unit}" if unit else name, "", scale))
    draw_scale_bar(axes, shown)
    below = figure.add_axes((0.13, 0.5 / whole, 0.82, 0.95 / whole))
    values = copies.sample[name].to_numpy()
    draw_histogram(below, values[np.isfinite(values)])
    unit = "people per pixel" if name == PEOPLE else label
    below.set_xlabel(f"pixels in areas, by {unit or 'value'}", size=8.5, color=MUTED)
    alt = (
        f"Map of {name} on the grid of the run, dark is high, with the borders of the areas; below "
        "it a histogram of the pixels in areas. The table of rasters has its numbers."
    )
    return Drawn(f"layer-{name}", name, alt, figure)


def bins_of(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the edges of the bins of a histogram, and whether they are logarithmic.

    They are where the largest value of 98 % is far above the middle, as of people.
    """
    if values.size == 0 or values.min() == values.max():
        return np.linspace(-0.5, 0.5, 2) + (values[0] if values.size else 0.0), False
    positive = values[values > 0]
    skewed = values.min() >= 0 and positive.size > 1 and positive.min() < positive.max()
    if skewed and np.quantile(values, 0.98) > 8 * np.median(positive):
        low = max(float(np.quantile(positive, 0.01)), float(positive.max()) * 1e-6)
        return np.geomspace(low, float(positive.max()), N_BIN + 1), True
    return np.linspace(float(values.min()), float(values.max()), N_BIN + 1), False


def draw_histogram(axes: Axes, values: np.ndarray) -> None:
    """Draw how many pixels have which values."""
    edges, logarithmic = bins_of(values)
    axes.hist(values, bins=list(edges), color=BLUE)
    _quiet(axes)
    axes.yaxis.set_major_locator(MaxNLocator(2))
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
        below = float((values < edges[0]).mean())
        if below > 0:
            text = f"{100 * below:.0f} % are below {edges[0]:.2g}"
            axes.text(1, 1.02, text, transform=axes.transAxes, size=8, color=MUTED, ha="right")


def draw_correlations(table: pd.DataFrame) -> Drawn | None:
    """Draw the correlations (n, n) between covariates; None of fewer than two."""
    n = len(table)
    if n < 2:
        return None
    side = float(np.clip(0.42 * n + 1.6, 3.4, 9.0))
    figure = new_figure(side + 0.6, side)
    axes = figure.add_subplot()
    axes.imshow(table.to_numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    axes.set_xticks(range(n), table.columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(n), table.columns)
    axes.tick_params(labelsize=8.5, length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    for i, j in np.argwhere(np.isfinite(table.to_numpy())) if n <= N_NUMBERS else ():
        value = table.iloc[i, j]
        colour = "white" if abs(value) > 0.65 else INK
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", size=8, color=colour)
    figure.tight_layout()
    alt = (
        "Matrix of the correlations between covariates: red is positive, blue negative. The table "
        "below names the strongest."
    )
    return Drawn("correlations", "Correlations between covariates", alt, figure)


def draw_rates(seen: Seen, rates: np.ndarray, odd: np.ndarray, label: str) -> Drawn | None:
    """Draw the rate of each area on the map, those that stand apart with a red border.

    Parameters
    ----------
    seen : Seen
    rates : (n_area,) float64 array
        NaN where unknown.
    odd : (n_area,) bool array
    label : str
        What is drawn, with its unit.
    """
    shapes = seen.shapes
    if shapes is None or shapes.empty:
        return None
    left, bottom, right, top = shapes.total_bounds
    aspect = aspect_of(shapes.crs, bottom, top)
    tall = 4.5 * float(np.clip(aspect * (top - bottom) / (right - left), 0.45, 1.6))
    figure = new_figure(4.6, tall + 0.95)
    axes = figure.add_axes((0.02, 0.95 / (tall + 0.95), 0.96, 0.98 * tall / (tall + 0.95)))
    own = rates[shapes.index]
    labels = set(np.unique(own[np.isfinite(own)])) == {0.0, 1.0}
    scale = Scale((0.0, 1.0), ramp_colours("level", 2)) if labels else Scale.of(own)
    thin = max(right - left, top - bottom) / 3000
    polygons = np.asarray(shapes.simplify(thin).array)
    fill_areas(axes, polygons, [scale.colour(v) if np.isfinite(v) else NONE for v in own])
    for shape in polygons[odd[shapes.index]]:
        for part in shapely.get_parts(shape):
            axes.plot(*np.asarray(part.exterior.coords)[:, :2].T, color="white", lw=3.2)
            axes.plot(*np.asarray(part.exterior.coords)[:, :2].T, color=RED, lw=1.8)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect=aspect, xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    handles = [
        Patch(facecolor=c, edgecolor=MUTED, linewidth=0.4, label=text)
        for c, text in zip(scale.colours, scale.labels(), strict=True)
        if np.isfinite(own).any()
    ]
    if not np.isfinite(own).all():
        handles.append(Patch(facecolor=NONE, edgecolor=MUTED, linewidth=0.4, label="none"))
    if odd.any():
        handles.append(Patch(facecolor="white", edgecolor=RED, linewidth=1.8, label="apart"))
    key = figure.legend(
        handles=handles, title=label, ncols=4, loc="lower left", frameon=False, fontsize=8.5,
        title_fontsize=9, labelcolor=INK, handlelength=1.2, columnspacing=1.0, alignment="left",
    )  # fmt: skip
    key.get_title().set_color(MUTED)
    alt = (
        f"Map of the areas by {label}, dark is high, grey without one. A red border marks areas "
        "that stand apart from their neighbours; the table lists them first."
    )
    return Drawn("rates", "Rates by area", alt, figure)


def draw_places(seen: Seen) -> Drawn | None:
    """Draw the points of each source on the borders of the areas; None where there are none."""
    shapes, places = seen.shapes, seen.places
    if shapes is None or shapes.empty or "x" not in places or places.empty:
        return None
    figure = new_figure(4.6, 4.6)
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
    left, bottom, right, top = shapes.total_bounds
    polygons = np.asarray(shapes.simplify(max(right - left, top - bottom) / 3000).array)
    fill_areas(axes, polygons, [NONE] * len(polygons))
    inside = places["x"].between(left, right) & places["y"].between(bottom, top)
    for (name, own), mark in zip(places.groupby("source"), cycle("o^sDv"), strict=False):
        away = int((~inside[own.index]).sum())
        label = f"{name} ({len(own):,}" + (f", {away:,} off the map)" if away else ")")
        axes.scatter(own["x"], own["y"], s=9, marker=mark, label=label)
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(left, right), ylim=(bottom, top))
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
    alt = f"Map of {len(places):,} points on the areas; {int((~inside).sum()):,} are off their map."
    return Drawn("places", "Points", alt, figure)


def draw_people_and_counts(
    exposure: np.ndarray, value: np.ndarray, odd: np.ndarray, names: np.ndarray, words: list[str]
) -> Drawn | None:
    """Draw the count of each area against its people, both on logarithmic axes.

    Parameters
    ----------
    exposure, value : (n_area,) float64 arrays
    odd : (n_area,) bool array
    names : (n_area,) array of str
    words : list of str
        What is on the axes: of the exposure, of the counts.
    """
    known = (exposure > 0) & np.isfinite(value) & (value >= 0)
    if known.sum() < 2:
        return None
    figure = new_figure(4.6, 4.4)
    axes = figure.add_axes((0.19, 0.13, 0.78, 0.84))
    prepare_plot(axes, "", words[0], words[1])
    axes.set_box_aspect(None)
    x, y = exposure, np.clip(value, 0.5, None)  # a logarithmic axis has no zero
    rate = float(np.median(value[known] / exposure[known]))
    ends = np.array([x[known].min(), x[known].max()])
    if rate > 0:
        axes.plot(ends, rate * ends, color=INK, lw=0.8, label="median rate")
    for chosen, colour, label in ((known & ~odd, BLUE, "area"), (known & odd, RED, "stands apart")):
        if chosen.any():
            axes.scatter(
                x[chosen], y[chosen], s=18, color=colour, label=label, zorder=3,
                linewidths=0.3, edgecolors="white",
            )  # fmt: skip
    for at in np.flatnonzero(known & odd)[:12]:
        axes.annotate(
            names[at], (x[at], y[at]), xytext=(4, 4), textcoords="offset points", size=8, color=RED
        )
    axes.set(xscale="log", yscale="log")
    for axis, own in ((axes.xaxis, x[known]), (axes.yaxis, y[known])):
        near = own.max() < 30 * own.min()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter("")
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
    alt = (
        f"Scatter plot of the areas: {words[1]} against {words[0]}, logarithmic. Red points stand "
        "apart from their neighbours."
    )
    return Drawn("people", "People and counts", alt, figure)


def draw_periods(
    periods: pd.DataFrame, hidden: pd.DataFrame, names: np.ndarray, total: str
) -> Drawn | None:
    """Draw the total of each period, and each area in each period: missing, zero or a value.

    Parameters
    ----------
    periods : (n_area, n_period) DataFrame
        NaN where missing or suppressed.
    hidden : (n_area, n_period) DataFrame
        Where suppressed.
    names : (n_area,) array of str
    total : str
        What is counted.
    """
    if periods.shape[1] < 2:
        return None
    table, marked = periods.to_numpy(np.float64), hidden.to_numpy(bool)
    lacks = np.isnan(table) & ~marked
    order = np.argsort(-lacks.sum(axis=1), kind="stable")[:N_STRIP]
    strip, titles = table[order], names[order]
    named = len(strip) <= N_NAMED
    tall = 0.17 * len(strip) if named else float(np.clip(0.012 * len(strip), 3.5, 8.0))
    tall = max(tall, 1.6)
    whole = tall + 3.1
    figure = new_figure(9.3, whole)
    left = 0.17 if named else 0.08
    upper = figure.add_axes((left, (tall + 1.15) / whole, 0.96 - left, 1.5 / whole))
    lower = figure.add_axes((left, 0.55 / whole, 0.96 - left, tall / whole), sharex=upper)
    at = np.arange(table.shape[1])
    sums = np.nansum(table, axis=0)
    counted = (~lacks).any(axis=0)
    upper.bar(at[counted], sums[counted], color=BLUE, width=0.85)
    for each in at[~counted]:
        upper.axvspan(each - 0.5, each + 0.5, color=NONE, lw=0)
    upper.set_title(f"{total.capitalize()} in all areas", loc="left", size=10, color=INK)
    _quiet(upper)
    upper.tick_params(labelbottom=False)
    positive = np.where(strip > 0, strip, np.nan)
    kind = np.where(lacks[order], 0.0, np.where(strip <= 0, 1.0, np.nan))
    kind[marked[order]] = 2.0
    lower.set_facecolor("white")
    if np.isfinite(positive).any():
        low, high = np.nanmin(positive), np.nanmax(positive)
        norm = LogNorm(low * 0.4, max(high, low * 1.01))  # the lowest is no white
        lower.imshow(positive, cmap="YlGnBu", norm=norm, aspect="auto", interpolation="nearest")
    lower.imshow(
        kind, cmap=ListedColormap([NONE, ZERO, HIDDEN]), vmin=0, vmax=2, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    which = "Each area" if len(strip) == len(table) else f"{len(strip):,} of {len(table):,} areas"
    lower.set_title(f"{which}, those with most gaps first", loc="left", size=10, color=INK)
    lower.set_yticks(range(len(strip)) if named else [], titles if named else [])
    shown = np.unique(np.linspace(0, len(at) - 1, min(len(at), 10)).astype(int))
    lower.set_xticks(shown, [str(periods.columns[k]) for k in shown])
    lower.tick_params(labelsize=8, length=2, color=MUTED, labelcolor=INK)
    lower.spines[:].set_visible(False)
    kinds = [(NONE, "missing"), (ZERO, "zero"), *([(HIDDEN, "suppressed")] if marked.any() else [])]
    handles = [
        *(Patch(facecolor=c, edgecolor=MUTED, linewidth=0.4, label=name) for c, name in kinds),
        Patch(facecolor="#a8ddb5", label="few"),
        Patch(facecolor="#0b2c6f", label="many"),
    ]
    lower.legend(
        handles=handles, ncols=len(handles), loc="lower right", bbox_to_anchor=(1.0, 1.0),
        frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.2, borderaxespad=0.1,
    )  # fmt: skip
    missing = int(lacks.sum())
    orange = f", {int(marked.sum()):,} are suppressed (orange)" if marked.any() else ""
    alt = (
        f"Bars of the total by period; below, a strip with a row an area and a column a period: "
        f"{missing:,} of {table.size:,} are missing (grey){orange}, zeros are yellow, values green "
        "to blue. The table of periods has the numbers."
    )
    return Drawn("periods", "Counts over time", alt, figure)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
