"""Draw the map, its uncertainty and its fit to the areas in one picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, StrMethodFormatter
from rasterio.enums import Resampling

from geo.writers.colours import Scale, number_text
from geo.writers.raster_files import RasterFiles
from pipeline.config.schema import Config
from pipeline.products.colours import raster_scale
from pipeline.products.products import raster
from pipeline.products.suppressed import ends_of
from pipeline.reporting.borders import Borders
from pipeline.reporting.plane import KM_DEGREE, aspect_of
from pipeline.reporting.words import percent
from pipeline.responses.response import Response

INK, MUTED, SEA = "#22252b", "#6d727c", "#f4f5f7"
BLUE, RED = "#2c5f8a", "#c8553d"


@dataclass(frozen=True)
class Overview:
    """A raster no larger than a picture needs.

    Attributes
    ----------
    values : (n_row, n_col) float64 array
        NaN where missing.
    extent : tuple of float
        Left, right, bottom and top, in the units of the CRS.
    crs : rasterio CRS or None
    """

    values: np.ndarray
    extent: tuple[float, float, float, float]
    crs: Any

    @property
    def aspect(self) -> float:
        """Height of a unit over its width, as drawn."""
        return aspect_of(self.crs, *self.extent[2:])

    def tall(self, least: float, most: float) -> float:
        """Return the height of the picture over its width, within limits."""
        left, right, bottom, top = self.extent
        return float(np.clip(self.aspect * (top - bottom) / (right - left), least, most))

    @classmethod
    def read(cls, files: RasterFiles, path: Path, n_side: int = 1400) -> Overview:
        """Read a raster with ``n_side`` pixels a side at most, from its overviews if it has any."""
        with files.open(path) as source:
            factor = max(1.0, max(source.height, source.width) / n_side)
            shape = (max(1, round(source.height / factor)), max(1, round(source.width / factor)))
            # Averaging removes the speckle of single pixels.
            band = source.read(1, out_shape=shape, resampling=Resampling.average, masked=True)
            bounds, crs = source.bounds, source.crs
        values = band.astype(np.float64).filled(np.nan)
        return cls(values, (bounds.left, bounds.right, bounds.bottom, bounds.top), crs)


@dataclass(frozen=True)
class Panel:
    """Style of a map: title, label of the colour bar, and colours."""

    title: str
    label: str
    scale: Scale


class BreakNorm(Normalize):
    """Place the breaks of a scale at equal distances, as the QGIS styles do."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale.breaks[0], scale.breaks[-1])
        self._breaks, self._places = np.asarray(scale.breaks), scale.places

    def __call__(self, value: Any, clip: bool | None = None) -> Any:  # noqa: ARG002
        """Return the positions of values on the ramp, 0 to 1."""
        given = np.ma.asarray(value)
        places = np.interp(given.filled(np.nan), self._breaks, self._places)
        return np.ma.array(places, mask=np.ma.getmaskarray(given))

    def inverse(self, value: Any) -> Any:
        """Return the values at positions on the ramp."""
        return np.interp(value, self._places, self._breaks)


def draw_preview(
    config: Config, directory: Path, verdict: str, files: RasterFiles, borders: Borders
) -> Figure | None:
    """Draw the maps and the fit of a directory in one picture; None without maps.

    Parameters
    ----------
    config : Config
    directory : Path
        Has the rasters of mean and standard deviation.
    verdict : str
        What the evaluation says of the map, in a line.
    files : RasterFiles
        Open files.
    borders : Borders
        Of the areas of the directory.
    """
    words = config.response_kind
    mean_map, sd_map = (raster(name) for name in (words.mean_map, words.spread_maps[0]))
    scale, colours = (raster_scale(config, directory, each, files) for each in (mean_map, sd_map))
    if scale is None or colours is None:
        return None
    mean, sd = (Overview.read(files, directory / each.file) for each in (mean_map, sd_map))
    areas, path = borders.areas, directory / mean_map.file
    rings = borders.rings(path, mean.extent)
    uncounted = ends_of(areas)[0].isna() & areas[words.level].notna()
    absent = borders.rings(path, mean.extent, uncounted)
    figure, (left, middle, right) = _figure(titled(config), verdict, mean)
    draw_map(left, mean, rings, Panel(words.map_title, words.map_label, scale))
    spread = Panel(f"Uncertainty of the {words.quantity}", words.spread_label, colours)
    draw_map(middle, sd, rings, spread)
    mark_absent(left, absent, words.noun)
    mark_absent(middle, absent, words.noun)
    draw_scale_bar(left, mean)
    FIT_PICTURES[words.fit_picture].draw(right, areas, words)
    return figure


def titled(config: Config) -> str:
    """Return the name of a map, with its period if it has one."""
    return config.name + (f", {config.period}" if config.period else "")


def _figure(name: str, verdict: str, shown: Overview) -> tuple[Figure, list[Axes]]:
    """Return a figure with two axes for maps and a square plot beside them."""
    tall = shown.tall(0.45, 2.2)
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
    figure.text(0.985, 1 - 0.24 / tall_in, verdict, size=9, color=MUTED, va="top", ha="right")
    return figure, [figure.add_subplot(grid[0, column]) for column in (0, 1, 3)]


def draw_map(axes: Axes, shown: Overview, rings: list[np.ndarray], panel: Panel) -> None:
    """Draw a raster with the areas' outlines and a colour bar."""
    values, extent, scale = shown.values, shown.extent, panel.scale
    image = axes.imshow(
        np.ma.masked_invalid(values),
        extent=extent,
        cmap=LinearSegmentedColormap.from_list("breaks", list(scale.colours), N=1024),
        norm=BreakNorm(scale),
        interpolation="none" if max(values.shape) < 400 else "antialiased",
    )
    width = float(np.interp(len(rings), [50, 1000, 5000], [0.5, 0.28, 0.12]))
    axes.add_collection(LineCollection(rings, colors=INK, linewidths=width, alpha=0.55))
    axes.set(
        xlim=extent[:2], ylim=extent[2:], aspect=shown.aspect, anchor="N", xticks=[], yticks=[]
    )
    axes.set_facecolor(SEA)
    axes.set_title(panel.title, loc="left", y=1.0, size=11.5, color=INK, pad=7)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(
        image, ax=axes, location="bottom", fraction=0.035, pad=0.025, shrink=0.82, aspect=34,
        anchor=(0.5, 1.0), panchor=(0.5, 1.0),
        extend=_ENDS[scale.below, scale.above],
    )  # fmt: skip
    bar.set_ticks(list(scale.breaks), labels=[number_text(value) for value in scale.breaks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK, length=2.5)
    bar.set_label(panel.label, size=9, color=MUTED)


# Ends of the colour bar with values beyond them.
_ENDS = {
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}


def mark_absent(axes: Axes, rings: list[np.ndarray], noun: str) -> None:
    """Dash the outlines of areas without a count or label, and say so."""
    if not rings:
        return
    axes.add_collection(LineCollection(rings, colors="white", linewidths=1.8, alpha=0.9))
    axes.add_collection(LineCollection(rings, colors=BLUE, linewidths=1.2, linestyles="dashed"))
    axes.text(
        1.0, 1.01, f"dashed: without a {noun}", transform=axes.transAxes, size=8, color=BLUE,
        ha="right", va="bottom",
    )  # fmt: skip


def draw_scale_bar(axes: Axes, shown: Overview) -> None:
    """Draw a bar of a round number of kilometres in the corner."""
    extent, crs = shown.extent, shown.crs
    if crs is None:
        return
    km = (extent[1] - extent[0]) / 1000 * (crs.linear_units_factor[1] if crs.is_projected else 1)
    if crs.is_geographic:
        middle = np.deg2rad((extent[2] + extent[3]) / 2)
        km = (extent[1] - extent[0]) * KM_DEGREE * float(np.cos(middle))
    if not km > 0:
        return
    power = 10 ** np.floor(np.log10(km / 4))
    length = max(step * power for step in (1, 2, 5) if step * power <= km / 4)
    share = length / km
    across = axes.get_xaxis_transform()
    width = extent[1] - extent[0]
    start = extent[0] + 0.03 * width
    halo = [withStroke(linewidth=3.2, foreground="white", alpha=0.9)]  # on dark pixels
    axes.plot(
        [start, start + share * width], [0.025, 0.025], transform=across, color=INK, lw=1.6,
        solid_capstyle="butt", path_effects=halo,
    )  # fmt: skip
    axes.text(
        start, 0.035, f"{length:,g} km", transform=across, size=8, color=INK, va="bottom",
        path_effects=halo,
    )  # fmt: skip


def draw_responses(axes: Axes, areas: Any, words: Response) -> None:
    """Draw observed responses against fitted ones, with the predictive interval of each."""
    known = areas[np.isfinite(areas["fitted"]) & np.isfinite(areas["observed"])]
    columns = ["observed", "fitted", "count_lower", "count_upper"]
    table = known[columns].to_numpy(np.float64)
    if not words.adds_up:  # as they were given
        people = known["people"].to_numpy(np.float64)
        table = table / np.where(people > 0, people, np.nan)[:, None]
    observed, fitted, lower, upper = table.T
    title = f"Areas: observed and fitted {words.given_values}"
    prepare_plot(axes, title, f"fitted {words.total}", f"observed {words.total}")
    if known.empty:
        return
    # A logarithmic axis has no zero: zero counts and bounds are drawn at half a case.
    floor = 0.5 if words.countable else None
    x, y = np.clip(fitted, floor, None), np.clip(observed, floor, None)
    low, high = np.clip(lower, floor, None), np.clip(upper, floor, None)
    inside = (lower <= observed) & (observed <= upper)
    bars = np.stack([np.stack([x, low], 1), np.stack([x, high], 1)], axis=1)
    axes.add_collection(LineCollection(list(bars), colors="#9aa3b2", linewidths=0.6, alpha=0.55))
    size = float(np.interp(len(known), [50, 2000], [22, 7]))
    style: dict[str, Any] = {"s": size, "linewidths": 0.3, "edgecolors": "white", "zorder": 3}
    axes.scatter(x[inside], y[inside], color=BLUE, label="inside", **style)
    axes.scatter(x[~inside], y[~inside], color=RED, label="outside", **style)
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    if words.countable:
        ends = [ends[0] / 1.4, ends[1] * 1.4]
        _logarithmic(axes, ends)
    else:
        margin = 0.05 * (ends[1] - ends[0]) or 1.0
        ends = [ends[0] - margin, ends[1] + margin]
    axes.plot(ends, ends, color=INK, lw=0.8, zorder=2)
    axes.set(xlim=ends, ylim=ends)
    title = words.fill("{interval} predictive interval")
    draw_legend(axes, f"{title}\n({percent(inside.mean())} inside, in sample)", "upper left")


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


def draw_labels(axes: Axes, areas: Any, words: Response) -> None:
    """Draw areas from the least to the most probable, coloured by what was observed."""
    areas = areas[np.isfinite(areas["probability"])].sort_values("probability")
    rank = np.arange(1, len(areas) + 1)
    p, y = areas["probability"].to_numpy(), areas["observed"].to_numpy()
    ends = areas[["probability_lower", "probability_upper"]].to_numpy()
    title = "Areas: observed label and probability"
    prepare_plot(axes, title, "areas, by probability", "probability to be positive")
    axes.set(ylim=(-0.02, 1.02), xlim=(0, len(areas) + 1))
    bars = np.stack([np.repeat(rank[:, None], 2, axis=1), ends], axis=2)
    axes.add_collection(LineCollection(list(bars), colors="#9aa3b2", linewidths=0.7, alpha=0.6))
    size = float(np.interp(len(areas), [50, 2000], [22, 7]))
    for chosen, word, colour in (
        (y == 1, "observed positive", RED),
        (y == 0, "observed negative", BLUE),
        (np.isnan(y), "without a label", MUTED),
    ):
        if word == "without a label" and not chosen.any():
            continue
        axes.scatter(
            rank[chosen], p[chosen], s=size, color=colour, linewidths=0.3,
            edgecolors="white", zorder=3, label=f"{word} ({int(chosen.sum())})",
        )  # fmt: skip
    draw_legend(axes, words.fill("bars: central {interval} of the posterior"), "best")


@dataclass(frozen=True)
class FitPicture:
    """A picture of the fit: how it is drawn, its title, and a text for who cannot see it."""

    draw: Callable[[Axes, Any, Response], None]
    title: str
    alt: str


#: By :attr:`pipeline.responses.response.Response.fit_picture`.
FIT_PICTURES = {
    "scatter": FitPicture(
        draw_responses,
        "Observed against predicted",
        "Scatter plot: observed {total} of each area against the fitted {total}, with predictive "
        "intervals. The table of areas has the numbers.",
    ),
    "ranked": FitPicture(
        draw_labels,
        "Observed label and probability",
        "Probability of each area to be positive, from the least to the most probable.",
    ),
}


def prepare_plot(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    """Give a square plot its title, labels and quiet axes."""
    axes.set_title(title, loc="left", y=1.0, size=11.5, color=INK, pad=7)
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8.5, color=MUTED, labelcolor=INK)
    axes.set_xlabel(x_label, size=9, color=MUTED)
    axes.set_ylabel(y_label, size=9, color=MUTED)


def draw_legend(
    axes: Axes, title: str, place: Literal["upper left", "lower right", "best"]
) -> None:
    """Draw a legend without a frame."""
    legend = axes.legend(
        title=title, loc=place, frameon=False, labelcolor=INK, fontsize=8.5, title_fontsize=8.5,
        handletextpad=0.2,
    )  # fmt: skip
    legend.get_title().set_color(MUTED)
    legend._legend_box.align = "left"  # type: ignore[attr-defined]
