"""Compare two runs or versions: files by pixel and by area, and the headline in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import models
from geo.errors import InputError, Problem
from geo.temporary import temporary_directory
from models.aggregate.paired import draw_pair, what_differs
from pipeline.cluster.local import n_thread
from pipeline.comparison.alarms import RATE, Kind, find_changes
from pipeline.comparison.areas import (
    AreaChange,
    as_published,
    change_by_draws,
    change_by_tables,
    draw_area_rates,
    open_areas,
)
from pipeline.comparison.differences import in_words, what_differed
from pipeline.comparison.outputs import (
    FILES,
    REPORT,
    descriptions,
    read_areas_layer,
    write_areas_change,
    write_change_styles,
)
from pipeline.comparison.pixels import PixelChange, check_overlap, compare_pixels
from pipeline.comparison.sides import Side
from pipeline.config.response_words import ResponseWords
from pipeline.core.code import installed_version
from pipeline.core.json_values import jsonable
from pipeline.core.progress import Progress
from pipeline.core.signals import deferred_signals
from pipeline.reporting.tables import name_column
from pipeline.storage.files import write_json

PAIRED, INDEPENDENT, MOMENTS = "paired draws", "independent draws", "means and deviations"
N_LISTED = 10  # areas that rose, or fell, most
N_NAMED = 3  # areas that the headline names


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
    scale = b.config.output.rate_per / a.config.output.rate_per if b.config.labels is None else 1.0
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
        table, noise = _described_table(change.table, layers, a, b)
        write_areas_change(table, *layers, b, staging)
        report = _report(
            a,
            b,
            drawn,
            (_method(by_pixel), by_area),
            pixels,
            table,
            change.total,
            noise,
            sure,
            notes,
            unit,
        )
        write_json(staging / REPORT, report)
        _move(staging, out)
    return report


def headline(report: dict[str, Any]) -> str:
    """Return what changed in one line."""
    areas, total = report["areas"], report["total"].get("expected")
    n = areas["n_common"]
    if areas["n_counts_rose"] is None:
        words = f"{areas['n_rose']} of {n} areas rose and {areas['n_fell']} fell"
        words += f" with a probability of {report['sure']:g} or more"
    else:
        rose, fell = areas["n_counts_rose"], areas["n_counts_fell"]
        words = f"observed {report['words']['rates']} of {n} areas: {rose} rose and {fell} fell"
        words += f" by more than chance{_named_few(areas['counts_rose'] + areas['counts_fell'])}"
    if total:
        words += f"; {report['words']['expected']} in them {total['a']:,.0f} -> {total['b']:,.0f}"
        if total.get("change_probability") is not None:
            words += f" (probability of a rise {total['change_probability']:.2f})"
        observed = report["total"].get("observed")
        if observed:
            words += f", {report['words']['observed']} {observed['a']:,.0f} -> {observed['b']:,.0f}"
    return f"{words}; by {report['method']['areas']}"


def lines(report: dict[str, Any]) -> list[str]:
    """Return the comparison as a few lines for a terminal."""
    pixels, areas, method = report["pixels"], report["areas"], report["method"]
    unit = report["unit"]
    found = [
        f"A: {_named(report['a'])}",
        f"B: {_named(report['b'])}",
        f"Differs: {in_words(report['differed'])}",
        f"Method: {method['pixels']} by pixel, {method['areas']} by area"
        + (f" ({method['why']})" if method["why"] else ""),
        headline(report)[0].upper() + headline(report)[1:],
        f"Pixels: {pixels['n_pix']:,} in both; {pixels['n_rose']:,} rose, {pixels['n_fell']:,} "
        f"fell; mean difference {pixels['mean_difference']:.4g}, mean absolute "
        f"{pixels['mean_absolute_difference']:.4g} ({unit})",
    ]
    for word, key in (("Rose most", "largest_rises"), ("Fell most", "largest_falls")):
        shown = [
            f"{each['id']} {each['difference']:+.3g} (probability {each['probability']:.2f})"
            for each in areas[key][:3]
        ]
        if shown:
            found.append(f"{word}: {', '.join(shown)}")
    for letter in "ab":
        only = areas[f"only_in_{letter}"]
        if only:
            more = f" and {len(only) - 5} more" if len(only) > 5 else ""
            found.append(f"Only in {letter.upper()}: {', '.join(only[:5])}{more}")
    return found


def _named(side: dict[str, Any]) -> str:
    parts = [side["name"], side["period"], side["version"], f"({side['directory']})"]
    return " ".join(str(part) for part in parts if part)


def _check_same_quantity(a: Side, b: Side) -> None:
    words = [ResponseWords.of(side.config) for side in (a, b)]
    named = [f"{w.quantity}, {w.rate_unit(1)}" for w in words]
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
    positive = b.config.labels is None and b.config.model.response.counts
    for side in (a, b):
        if not side.drawn:
            notes.append(
                f"{side.label}: {side.lacks}; means and standard deviations of the maps are "
                "compared instead, as if the errors of A and B were independent and "
                + ("log-normal" if positive else "normal")
            )
            return None
    pair = [models.load(side.model) for side in (a, b)]  # type: ignore[arg-type]
    differs = what_differs(*pair)
    paired = differs is None and not independent
    why = "as asked for by --independent" if independent else f"{differs} differs"
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
    labels = b.config.labels is not None
    tables = [_moments(frame, labels) for frame in layers]
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
    positive = not labels and b.config.model.response.counts
    found = change_by_tables(*tables, scale=scale, interval=interval, positive=positive)
    return found, MOMENTS


def _moments(frame: pd.DataFrame, labels: bool) -> pd.DataFrame:
    """Return mean and standard deviation of the rates of a table of areas."""
    nothing = np.full(len(frame), np.nan)
    if labels:
        columns = {"rate": frame["probability"], "sd": frame["probability_sd"]}
        return pd.DataFrame({**columns, "exposure": nothing, "expected": nothing}, frame.index)
    # Per person, by the table's own rates: also where they are per person tested.
    per = frame["fitted_rate"] / frame["fitted"]
    exposure = frame["tested"] if "tested" in frame else frame["people"]
    return pd.DataFrame(
        {
            "rate": frame["fitted_rate"],
            "sd": frame["fitted_sd"] * per,
            "exposure": exposure,
            "expected": frame["fitted"],
        }
    )


def _described_table(
    table: pd.DataFrame, layers: Sequence[pd.DataFrame], of_a: Side, side: Side
) -> tuple[pd.DataFrame, float | None]:
    """Add names, observed values, the areas that changed beyond chance; areas without pixels too.

    Also return the noise between areas, None of labels.
    """
    a, b = layers
    trials = side.config.labels is None and side.config.model.response.needs_trials
    exposed = "tested" if trials else "people"  # as in areas.csv
    table = table.rename(columns={f"exposure_{x}": f"{exposed}_{x}" for x in "ab"})
    ids = [*b.index, *a.index.difference(b.index, sort=False)]
    result = table.reindex(pd.Index(ids, name="id"))
    has_a, has_b = result.index.isin(a.index), result.index.isin(b.index)
    result.insert(0, "in_maps", np.where(has_a & has_b, "A and B", np.where(has_a, "A", "B")))
    for letter, frame in (("a", a), ("b", b)):
        result[f"observed_{letter}"] = frame["observed"].reindex(result.index)
    names = [_names(frame, each) for frame, each in ((b, side), (a, of_a))]
    named = [each for each in names if each is not None]
    if named:
        whole = named[0] if len(named) == 1 else named[0].combine_first(named[1])
        result.insert(0, "name", whole.reindex(result.index))
    if side.config.labels is not None:
        return result, None
    kind: Kind = "values"
    if side.config.model.response.counts:
        kind = "trials" if trials else "counts"
    sides = []
    scale = side.config.output.rate_per / of_a.config.output.rate_per
    for frame, factor in ((a, scale), (b, 1.0)):
        moments = _moments(frame, labels=False)
        moments[["rate", "sd"]] *= factor
        moments["observed"] = frame["observed"]
        sides.append(moments.reindex(result.index))
    tested, noise = find_changes(sides[0], sides[1], kind)
    result["change_p_value"], result["changed"] = tested["p_value"], tested["told"]
    return result, noise


def _names(frame: pd.DataFrame, side: Side) -> pd.Series | None:
    """Return the names of the areas: of `areas.name`, else the column that the report takes."""
    asked, key = side.config.areas.name, str(frame.index.name)
    column = asked if asked in frame else name_column(frame, key)
    return None if column == key else frame[column].astype(str)


def _report(
    a: Side,
    b: Side,
    drawn: _Drawn | None,
    methods: tuple[str, str],
    pixels: PixelChange,
    table: pd.DataFrame,
    total: dict[str, Any],
    noise: float | None,
    sure: float,
    notes: list[str],
    unit: str,
) -> dict[str, Any]:
    probability = table["change_probability"]
    areas = {
        "n_common": int((table["in_maps"] == "A and B").sum()),
        "n_rose": int((probability >= sure).sum()),
        "n_fell": int((probability <= 1 - sure).sum()),
        "n_rose_independent": int((table["change_probability_independent"] >= sure).sum()),
        "n_counts_rose": None if noise is None else int((table["changed"] == "rose").sum()),
        "n_counts_fell": None if noise is None else int((table["changed"] == "fell").sum()),
        "counts_rose": _told(table, "rose"),
        "counts_fell": _told(table, "fell"),
        "false_discovery_rate": RATE,
        "noise_between_areas": noise,
        "n_fell_independent": int((table["change_probability_independent"] <= 1 - sure).sum()),
        "largest_rises": _largest(table, up=True),
        "largest_falls": _largest(table, up=False),
        "only_in_a": list(table.index[table["in_maps"] == "A"]),
        "only_in_b": list(table.index[table["in_maps"] == "B"]),
    }
    if total:  # of the areas that the expected totals are of
        known = table[[f"{name}_{x}" for name in ("expected", "observed") for x in "ab"]]
        chosen = known[known.notna().all(axis=1)]
        if len(chosen) == total["n_areas"]:
            sums = {x: float(chosen[f"observed_{x}"].sum()) for x in "ab"}
            total = {**total, "observed": sums}
    words = ResponseWords.of(b.config)
    method = {
        "pixels": methods[0],
        "areas": methods[1],
        "why": notes[0].partition(": ")[2] if drawn is not None and not drawn.paired else "",
        "n_draws": None if drawn is None else drawn.n_draws,
    }
    report = {
        "format": "disagg-comparison",
        "version": 1,
        "a": a.summary(),
        "b": b.summary(),
        "unit": unit,
        "words": {
            "quantity": words.quantity,
            "rates": words.rates,
            "expected": words.fitted,
            "observed": f"observed {words.total}",
        },
        "interval": b.config.output.interval,
        "sure": round(sure, 6),
        "method": method,
        "notes": notes,
        "pixels": asdict(pixels),
        "areas": areas,
        "total": total,
        "differed": what_differed(a.run, b.run),
    }
    report["headline"] = headline(report)
    found: dict[str, Any] = jsonable(report)
    return found


def _told(table: pd.DataFrame, word: str) -> list[str]:
    """Return the areas that are told, the surest first, with their names."""
    if "changed" not in table:
        return []
    told = table[table["changed"] == word].sort_values("change_p_value", kind="stable")
    names = told["name"] if "name" in told else pd.Series(None, told.index, dtype=object)
    return [
        f"{code} ({name})" if isinstance(name, str) else str(code) for code, name in names.items()
    ]


def _named_few(names: list[str]) -> str:
    few = ", ".join(names[:N_NAMED])
    if not names:
        return ""
    return f" ({few}{f' and {len(names) - N_NAMED} more' if len(names) > N_NAMED else ''})"


def _largest(table: pd.DataFrame, *, up: bool) -> list[dict[str, Any]]:
    ordered = table["difference"].dropna().sort_values(ascending=not up, kind="stable")
    ordered = ordered[ordered > 0] if up else ordered[ordered < 0]
    return [
        {
            "id": str(name),
            "difference": float(value),
            "ratio": float(table.loc[name, "ratio"]),
            "probability": float(table.loc[name, "change_probability"]),
        }
        for name, value in ordered.head(N_LISTED).items()
    ]


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
