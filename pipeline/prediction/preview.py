"""The map at a glance: rate, uncertainty and fit in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
import rasterio
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, StrMethodFormatter
from rasterio.enums import Resampling

INK, MUTED, SEA = "#22252b", "#6d727c", "#f4f5f7"


def render_preview(
    directory: Path,
    destination: Path,
    name: str,
    interval: float,
    unit: str,
    *,
    counts: bool = True,
) -> None:
    """Draw ``preview.png`` from the overviews of the rasters and the areas of a directory.

    Parameters
    ----------
    directory : Path
        With ``rate_mean.tif``, ``rate_sd.tif`` and ``areas.gpkg``.
    destination : Path
        The PNG.
    name : str
        Title.
    interval : float
        Central probability of the intervals in ``areas.gpkg``.
    unit : str
        Of the rate, such as ``"cases per 1,000 people"``.
    counts : bool, optional
        Whether the areas' responses are counts, drawn in logarithms; values may be negative.
    """
    mean, extent, aspect, crs = read_overview(directory / "rate_mean.tif")
    sd, *_ = read_overview(directory / "rate_sd.tif")
    areas = pyogrio.read_dataframe(directory / "areas.gpkg").to_crs(crs)
    lines = outlines(areas, extent)
    figure, (left, middle, right) = lay_out(name, extent, aspect)
    spread = np.full_like(mean, np.nan)
    np.divide(100 * sd, mean, out=spread, where=mean > 0)
    draw_map(left, mean, extent, aspect, lines, "magma_r", "Mean rate", unit)
    draw_map(
        middle, spread, extent, aspect, lines, "YlGnBu", "Uncertainty of the rate",
        "standard deviation, % of the mean",
    )  # fmt: skip
    scale_bar(left, extent, crs)
    _draw_fit(right, areas, interval, counts=counts)
    figure.savefig(destination, metadata={"Software": None, "Title": name})


def lay_out(name: str, extent: tuple, aspect: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with room for two maps and a square plot beside them."""
    tall = float(np.clip(aspect * (extent[3] - extent[2]) / (extent[1] - extent[0]), 0.45, 2.2))
    width = 4.6 if tall > 1.2 else 5.6
    height = min(width * tall, 8.2)
    figure = Figure(figsize=(2 * width + 5.2, height + 1.75), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    tall_in = height + 1.75
    grid = figure.add_gridspec(
        1,
        4,  # the third column is room for the scatter's labels
        width_ratios=[width, width, 0.45, 4.2],
        left=0.02,
        right=0.985,
        bottom=0.5 / tall_in,
        top=1 - 0.8 / tall_in,
        wspace=0.05,
    )
    figure.text(0.02, 1 - 0.18 / tall_in, name, size=15, weight="bold", color=INK, va="top")
    return figure, [figure.add_subplot(grid[0, column]) for column in (0, 1, 3)]


def read_overview(path: Path, n_side: int = 1400) -> tuple[np.ndarray, tuple, float, Any]:
    """Read a raster no larger than ``n_side``: from its overviews where it has them."""
    with rasterio.open(path) as source:
        factor = max(1.0, max(source.height, source.width) / n_side)
        shape = (max(1, round(source.height / factor)), max(1, round(source.width / factor)))
        # Averages on the way down keep the speckle of single pixels out of the picture.
        band = source.read(1, out_shape=shape, resampling=Resampling.average, masked=True)
        bounds, crs = source.bounds, source.crs
    aspect = 1.0
    if crs is not None and crs.is_geographic:
        middle = np.deg2rad((bounds.bottom + bounds.top) / 2)
        aspect = 1 / max(float(np.cos(middle)), 0.1)
    values = band.astype(np.float64).filled(np.nan)
    return values, (bounds.left, bounds.right, bounds.bottom, bounds.top), aspect, crs


def outlines(areas: Any, extent: tuple) -> list[np.ndarray]:
    """Rings of the areas, thinned to what the picture can show."""
    thin = max(extent[1] - extent[0], extent[3] - extent[2]) / 3000
    rings = []
    for shape in areas.geometry:
        for part in getattr(shape, "geoms", [shape]):
            if part is None or part.is_empty:
                continue
            for ring in (part.exterior, *part.interiors):
                rings.append(np.asarray(ring.simplify(thin).coords)[:, :2])
    return rings


def colour_range(values: np.ndarray) -> Normalize | LogNorm:
    """Colours over the central 98 % of the values, in logarithms where they are very skewed."""
    known = values[np.isfinite(values)]
    if known.size == 0:
        return Normalize(0, 1)
    low, middle, high = np.quantile(known, [0.01, 0.5, 0.99])
    if high <= low:
        return Normalize(low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
    if low >= 0 and middle > 0 and high / middle > 4:
        return LogNorm(max(low, high / 500), high)
    return Normalize(0 if 0 <= low < 0.15 * high else low, high)


def draw_map(
    axes: Axes,
    values: np.ndarray,
    extent: tuple,
    aspect: float,
    outlines: list[np.ndarray],
    colours: str,
    title: str,
    label: str,
    norm: Normalize | LogNorm | None = None,
) -> None:
    """Draw a raster with the areas' outlines and a colour bar."""
    norm = norm or colour_range(values)
    image = axes.imshow(
        np.ma.masked_invalid(values),
        extent=extent,
        cmap=colours,
        norm=norm,
        interpolation="none" if max(values.shape) < 400 else "antialiased",
    )
    width = float(np.interp(len(outlines), [50, 1000, 5000], [0.5, 0.28, 0.12]))
    axes.add_collection(LineCollection(outlines, colors=INK, linewidths=width, alpha=0.55))
    axes.set(xlim=extent[:2], ylim=extent[2:], aspect=aspect, anchor="N", xticks=[], yticks=[])
    axes.set_facecolor(SEA)
    axes.set_title(title, loc="left", size=11.5, color=INK, pad=7)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(
        image, ax=axes, location="bottom", fraction=0.035, pad=0.025, shrink=0.82, aspect=34,
        anchor=(0.5, 1.0), panchor=(0.5, 1.0),
        extend=_beyond(values, norm),
    )  # fmt: skip
    if isinstance(norm, LogNorm):
        decades = np.log10(float(norm.vmax or 1) / float(norm.vmin or 1))
        steps = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
        bar.ax.xaxis.set_major_locator(LogLocator(subs=steps))
        bar.ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        bar.ax.xaxis.set_minor_locator(LogLocator(subs=[]))
    else:
        bar.ax.xaxis.set_major_locator(MaxNLocator(6))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK, length=2.5)
    bar.set_label(label, size=9, color=MUTED)


def _beyond(values: np.ndarray, norm: Normalize) -> str:
    """Which ends of the colour bar have values beyond them."""
    known = values[np.isfinite(values)]
    if known.size == 0 or norm.vmin is None or norm.vmax is None:
        return "neither"
    below, above = bool((known < norm.vmin).any()), bool((known > norm.vmax).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def scale_bar(axes: Axes, extent: tuple, crs: Any) -> None:
    """Draw a bar of a round number of kilometres in the corner."""
    if crs is None:
        return
    km = (extent[1] - extent[0]) / 1000 * (crs.linear_units_factor[1] if crs.is_projected else 1)
    if crs.is_geographic:
        middle = np.deg2rad((extent[2] + extent[3]) / 2)
        km = (extent[1] - extent[0]) * 111.32 * float(np.cos(middle))
    if not km > 0:
        return
    power = 10 ** np.floor(np.log10(km / 4))
    length = max(step * power for step in (1, 2, 5) if step * power <= km / 4)
    share = length / km
    across = axes.get_xaxis_transform()
    width = extent[1] - extent[0]
    start = extent[0] + 0.03 * width
    axes.plot(
        [start, start + share * width], [0.025, 0.025], transform=across, color=INK, lw=1.6,
        solid_capstyle="butt",
    )  # fmt: skip
    axes.text(start, 0.035, f"{length:,g} km", transform=across, size=8, color=INK, va="bottom")


def _draw_fit(axes: Axes, areas: Any, interval: float, *, counts: bool) -> None:
    """Draw observed responses against fitted ones, with the predictive interval of each."""
    noun = "cases" if counts else "values"
    known = areas[np.isfinite(areas["fitted"])]
    observed, fitted = known["observed"].to_numpy(), known["fitted"].to_numpy()
    lower, upper = known["count_lower"].to_numpy(), known["count_upper"].to_numpy()
    title = "Areas: observed and fitted " + ("counts" if counts else "values")
    axes.set_title(title, loc="left", size=11.5, color=INK, pad=7)
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK)
    axes.set_xlabel(f"fitted {noun}", size=9, color=MUTED)
    axes.set_ylabel(f"observed {noun}", size=9, color=MUTED)
    if known.empty:
        return
    # Logarithms have no zero: zero counts and bounds sit on the axis, half a case.
    floor = 0.5 if counts else None
    x, y = np.clip(fitted, floor, None), np.clip(observed, floor, None)
    low, high = np.clip(lower, floor, None), np.clip(upper, floor, None)
    inside = (lower <= observed) & (observed <= upper)
    bars = np.stack([np.stack([x, low], 1), np.stack([x, high], 1)], axis=1)
    axes.add_collection(LineCollection(list(bars), colors="#9aa3b2", linewidths=0.6, alpha=0.55))
    size = float(np.interp(len(known), [50, 2000], [22, 7]))
    style: dict[str, Any] = {"s": size, "linewidths": 0.3, "edgecolors": "white", "zorder": 3}
    axes.scatter(x[inside], y[inside], color="#2c5f8a", label="inside", **style)
    axes.scatter(x[~inside], y[~inside], color="#c8553d", label="outside", **style)
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    if counts:
        ends = [ends[0] / 1.4, ends[1] * 1.4]
        _logarithmic(axes, ends)
    else:
        margin = 0.05 * (ends[1] - ends[0]) or 1.0
        ends = [ends[0] - margin, ends[1] + margin]
    axes.plot(ends, ends, color=INK, lw=0.8, zorder=2)
    axes.set(xlim=ends, ylim=ends)
    legend = axes.legend(
        title=f"{interval:.0%} predictive interval\n({inside.mean():.0%} inside, in sample)",
        loc="upper left", frameon=False, labelcolor=INK, fontsize=8.5, title_fontsize=8.5,
        handletextpad=0.2,
    )  # fmt: skip
    legend.get_title().set_color(MUTED)
    legend._legend_box.align = "left"  # type: ignore[attr-defined]


def _logarithmic(axes: Axes, ends: list[float]) -> None:
    """Give both axes a logarithmic scale and few, plain ticks."""
    axes.set(xscale="log", yscale="log")
    decades = np.log10(ends[1] / ends[0])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
        wide = ends[1] >= 1e6
        axis.set_major_formatter(
            LogFormatterSciNotation() if wide else StrMethodFormatter("{x:,g}")
        )
        axis.set_minor_formatter("")


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
