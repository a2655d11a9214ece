"""Compare two runs or versions: files by pixel and by area, and the headline in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import models
from geo.core.errors import InputError, Problem
from geo.core.temporary import temporary_directory
from models.aggregate.paired import draw_pair, what_differs
from pipeline.cluster.local import n_thread
from pipeline.comparison.areas import (
    AreaChange,
    as_published,
    change_by_draws,
    change_by_tables,
    draw_area_rates,
    open_areas,
)
from pipeline.comparison.outputs import (
    FILES,
    REPORT,
    descriptions,
    read_areas_layer,
    write_areas_change,
    write_change_styles,
)
from pipeline.comparison.periods import write_periods_change
from pipeline.comparison.pixels import check_overlap, compare_pixels
from pipeline.comparison.report import change_report, described_table, moments
from pipeline.comparison.scores import compare_scores
from pipeline.comparison.sides import Side
from pipeline.core.code import installed_version
from pipeline.core.progress import Progress
from pipeline.core.signals import deferred_signals
from pipeline.storage.files import write_json

PAIRED, INDEPENDENT, MOMENTS = "paired draws", "independent draws", "means and deviations"


@dataclass(frozen=True)
class _Drawn:
    models: tuple[Any, Any]
    draws: tuple[Any, Any]
    paired: bool
    n_draws: int


def compare_sides(
    a: Side,
    b: Side,
    out: Path,
    progress: Progress,
    *,
    independent: bool = False,
    n_draws: int | None = None,
    moments: bool = False,
) -> dict[str, Any]:
    """Compare B with A, and write the files of the comparison to a directory.

    Parameters
    ----------
    a, b : Side
        Before and after.
    out : Path
        Directory of the files; those of an earlier comparison are replaced, all or none.
    progress : Progress
    independent : bool, optional
        Draw the two apart, also where they could be paired.
    n_draws : int, optional
        Surfaces of each model; ``output.draws`` of B by default.
    moments : bool, optional
        Do not draw: use the means and standard deviations of the maps.

    Returns
    -------
    dict
        Content of ``compare.json``.

    Raises
    ------
    InputError
        If the maps show different things, do not overlap, or ``out`` has other files.
    """
    _check_same_quantity(a, b)
    _check_out(out)
    same_grid = check_overlap(a, b)
    notes: list[str] = []
    drawn = None if moments else _draw(a, b, independent, n_draws, notes)
    if moments:
        notes.append("not drawn: the maps' means and standard deviations are compared")
    if not same_grid:
        notes.append(
            f"the grids differ: {a.label} is resampled to the grid of {b.label}, and pixels are "
            "compared by means and standard deviations"
        )
    by_pixel = drawn if same_grid else None
    if drawn is not None and drawn.paired and a.config.period != b.config.period:
        notes.append(
            "paired draws share the errors that two periods have in common, and the noise of the "
            "counts too; --independent shares nothing: the truth lies between"
        )
    for note in notes:
        progress.log(f"compare: {note}")
    sure = 0.5 + 0.5 * b.config.output.interval
    scale = b.response.rate_per / a.response.rate_per
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(f".{out.name}.partial-", out.parent) as staging:
        described = descriptions(b)
        pixels = compare_pixels(
            a,
            b,
            None if by_pixel is None else by_pixel.draws,
            staging,
            scale=scale,
            sure=sure,
            described=described,
            tags=_tags(a, b, _method(by_pixel)),
            progress=progress,
            n_thread=n_thread(b.config),
        )
        unit = described["difference_mean.tif"][1]
        write_change_styles(staging, "" if unit == "1" else unit)
        layers = read_areas_layer(a), read_areas_layer(b)
        change, by_area = _areas(a, b, drawn, layers, scale, notes, progress)
        table, noise = described_table(change.table, layers, a, b)
        write_areas_change(table, *layers, b, staging)
        why = notes[0].partition(": ")[2] if drawn is not None and not drawn.paired else ""
        method = {
            "pixels": _method(by_pixel),
            "areas": by_area,
            "why": why,
            "n_draws": None if drawn is None else drawn.n_draws,
        }
        total = change.total
        report = change_report(a, b, method, pixels, table, total, noise, sure, notes, unit)
        report["periods"] = write_periods_change(a, b, staging)
        report["scores"] = compare_scores(a, b, table)
        write_json(staging / REPORT, report)
        _move(staging, out)
    return report


def _check_same_quantity(a: Side, b: Side) -> None:
    kinds = [side.response for side in (a, b)]
    # A rate of a month is no rate of a week, nor one of whatever period a single map is of.
    named = [f"{kind.quantity}, {kind.unit_per(1)}{kind.each_period}" for kind in kinds]
    if named[0] != named[1]:
        found = f"maps {named[1]}, but {a.label} maps {named[0]}"
        raise InputError(Problem(b.label, found, "compare maps of the same quantity and unit"))
    for side in (a, b):
        if not side.level.is_file():  # of a model that labels areas alone
            found = f"has no {side.level.name}"
            raise InputError(Problem(side.label, found, "compare maps of pixels"))
        absent = [path for path in (side.spread, side.areas) if not path.is_file()]
        if absent:
            found = f"{absent[0]} is missing"
            raise InputError(Problem(side.label, found, "compare finished runs or versions"))


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(Problem(str(out), "a file, not a directory", "give a directory"))
    if out.is_dir() and any(out.iterdir()) and not (out / REPORT).is_file():
        found = "has files that are not of a comparison"
        raise InputError(Problem(str(out), found, "give a new or an empty directory by --out"))


def _draw(
    a: Side, b: Side, independent: bool, n_draws: int | None, notes: list[str]
) -> _Drawn | None:
    """Draw both models, if both can be; else say why not."""
    for side in (a, b):
        if not side.drawn:
            notes.append(
                f"{side.label}: {side.lacks}; means and standard deviations of the maps are "
                "compared instead, as if the errors of A and B were independent and "
                + ("log-normal" if b.response.countable else "normal")
            )
            return None
    pair = [models.load(side.model) for side in (a, b)]  # type: ignore[arg-type]
    differs = what_differs(*pair)
    paired = differs is None and not independent
    why = "as asked for by --independent" if independent else f"A and B differ in {differs}"
    notes.append(
        "draws are paired (the same random numbers): kernel, inducing points and scaling are shared"
        if paired
        else f"draws are independent: {why}"
    )
    settings = (b.run.get("settings") or {}).get("output") or {}
    n = n_draws or settings.get("draws") or b.config.output.draws
    n = n if isinstance(n, int) else 500
    seed = b.config.fit.seed
    draws = draw_pair(pair[0], pair[1], n, seed, paired=paired)
    return _Drawn((pair[0], pair[1]), draws, paired, n)


def _method(drawn: _Drawn | None) -> str:
    if drawn is None:
        return MOMENTS
    return PAIRED if drawn.paired else INDEPENDENT


def _areas(
    a: Side,
    b: Side,
    drawn: _Drawn | None,
    layers: Sequence[pd.DataFrame],
    scale: float,
    notes: list[str],
    progress: Progress,
) -> tuple[AreaChange, str]:
    """Compare the areas; also return by what."""
    interval, rate_per = b.config.output.interval, b.config.output.rate_per
    tables = [moments(frame, b.response) for frame in layers]
    if drawn is not None:
        stores = [open_areas(side) for side in (a, b)]
        with progress.task("areas", sum(store.n_bag for store in stores)) as task:
            one, other = (
                draw_area_rates(model, draws, store, frame, n_thread(side.config), task.advance)
                for side, model, draws, store, frame in zip(
                    (a, b), drawn.models, drawn.draws, stores, layers, strict=True
                )
            )
        ids = [list(store.ids) for store in stores]
        found = change_by_draws(
            (one, ids[0]),
            (other, ids[1]),
            rate_per=rate_per,
            interval=interval,
            paired=drawn.paired,
        )
        published = as_published(found, (one, other), *tables, scale=scale, rate_per=rate_per)
        if published is not None:
            return published, _method(drawn)
        notes.append(
            "the totals of the draws are not those of the tables, so areas are compared by means "
            "and standard deviations"
        )
        progress.log(f"compare: warning: {notes[-1]}")
    positive = b.response.countable
    found = change_by_tables(*tables, scale=scale, interval=interval, positive=positive)
    return found, MOMENTS


def _tags(a: Side, b: Side, method: str) -> dict[str, str]:
    return {
        "TIFFTAG_SOFTWARE": f"disagg {installed_version('disagg')}",
        "name": b.config.name,
        "compared_a": _short(a),
        "compared_b": _short(b),
        "probability_by": method,
    }


def _short(side: Side) -> str:
    parts = [side.config.name, side.config.period, side.version, side.run.get("written")]
    return " ".join(str(part) for part in parts if part)


def _move(staging: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with deferred_signals():
        # compare.json certifies the other files: it goes first and comes last.
        (out / REPORT).unlink(missing_ok=True)
        for name in FILES:
            if (staging / name).is_file():
                (staging / name).replace(out / name)
