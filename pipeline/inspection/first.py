"""A first configuration, commented: the text that ``disagg init`` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from geo.sources.raster_header import crs_text
from pipeline.config.series import MARKS
from pipeline.ingest.raster_suspicions import DENSITY
from pipeline.inspection.folder import RasterFile
from pipeline.inspection.guess import Guess, names_column

N_PIX = 40_000  # of a grid that no raster gives
PERIOD, YEAR = MARKS
_KEYS = ("tested", "weight", "weight_unit", "of", "unit")
#: Degrees that a plane of one zone is good for.
WIDE = 12.0


def configuration(found: Guess, folder: Path, left: list[str]) -> str:
    """Return a configuration as YAML with comments.

    Parameters
    ----------
    found : Guess
    folder : Path
        Of the files; the map has its name.
    left : list of str
        Files that are not used, and why.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-").lower() or "map"
    lines = [
        "# Written by `disagg init` from the files of this folder. Each key: disagg config KEY.",
        "# Look through it, then: disagg check disagg.yaml; disagg run disagg.yaml",
        f"name: {name}",
        "",
        *_areas(found),
        *_response(found),
        *_population(found),
        *_covariates(found),
        *_grid(found),
        *_time(found),
        *_model(found),
        _output(found),
    ]
    if found.truth is not None:
        lines.append(f"truth:       {{path: {_text(found.truth.path)}}}   # of a simulated country")
    if left:
        lines += ["", "# Not used:", *(f"#   {each}" for each in left)]
    return "\n".join(lines) + "\n"


def _areas(found: Guess) -> Iterator[str]:
    areas, section = found.areas, {"path": found.areas.path}
    if areas.layer is not None:
        section["layer"] = areas.layer
    section["id"] = found.pairing.area_id
    name = names_column(found)
    if name is not None:
        section["name"] = name
    about = f"{len(areas.frame):,} areas, {crs_text(areas.frame.crs)}"
    if found.changes is not None:
        section["changes"] = found.changes.path
        about += "; changes: what counts of before are of"
    yield _line("areas", section, about)


def _response(found: Guess) -> Iterator[str]:
    response = found.response
    key, section = ("labels" if response.labels else "counts"), dict[str, object]()
    if found.counts is not None:
        section["path"] = found.counts.path
        if found.counts.sheet is not None:
            section["sheet"] = found.counts.sheet
        if found.counts.skip_rows:
            section["skip_rows"] = found.counts.skip_rows
        section["id"] = found.pairing.table_id
    section["value"] = response.value
    if found.pairing.loose:
        section["match"] = "spelling"
    if found.crosswalk is not None:
        section["crosswalk"] = found.crosswalk.path
    if response.wide:
        section["periods"] = "columns"
    if found.period is not None:
        section["period"] = found.period
    if not response.labels:
        known = {name: getattr(response, name) for name in _KEYS}
        section |= {name: value for name, value in known.items() if value is not None}
    share = f"{100 * found.pairing.share:.0f} % of its ids are those of areas"
    own = "a column of the areas" if found.counts is None else share
    if found.crosswalk is not None:
        own += ", by the crosswalk"
    if found.pairing.loose:
        own += ", but for their spelling"
    if response.labels:
        own += "; 1 or 0, or words for them: labels"
    if response.likelihood is not None and response.unit is None:
        own += "; `unit: t/ha`, say, is what legends and tables call it"
    yield _line(key, section, own)


def _population(found: Guess) -> Iterator[str]:
    people = found.population
    if people is None:
        why = found.why.get("population", "no raster of people: rates are per km2")
        yield f"# population: {why}"
        return
    section = _raster(people, found)
    dense = DENSITY.search(f"{people.name} {people.about.unit} {people.about.description}".lower())
    if dense is not None:
        section["density"] = True
    unit = (
        f"density, as {dense[0].strip()!r} says"
        if dense
        else "people per pixel; density: true if per km2"
    )
    yield _line("population", section, unit)


def _covariates(found: Guess) -> Iterator[str]:
    if not found.covariates and not found.tables:
        yield "# covariates: none; space and time explain all"
        return
    yield "covariates:            # further keys: transform (log1p, log, sqrt), resampling, lag"
    for name, each in found.covariates.items():
        unit = each.about.unit or "unit not told"
        n = f"; {len(each.labels)} files" if each.labels else ""
        times = [band.time for band in each.about.bands if band.time]
        if found.step is not None and len(times) == 1 and not each.labels:
            n += f"; of {times[0]} alone, for all periods"
        yield f"  {_text(name)}: {_flow(_raster(each, found))}   # {_plain(unit)}{n}"
    for name, (table, pairing, column, period) in found.tables.items():
        section = {"table": table.path, "id": pairing.table_id, "value": column}
        if period is not None:
            section["period"] = period
        yield f"  {_text(name)}: {_flow(section)}   # by area: its pixels share it"


def _raster(each: RasterFile, found: Guess) -> dict[str, object]:
    """Return what a section says of a raster: its path, and which of its bands."""
    section: dict[str, object] = {"path": _marked(each, found)}
    if each.variable:
        section["variable"] = each.variable
    if each.by_time:
        section["time"] = PERIOD
    return section


def _marked(each: RasterFile, found: Guess) -> str:
    """Return a path with the mark of what its files are of: a period of the counts, or a year."""
    return each.path.replace(PERIOD, YEAR) if each.years and found.step != "year" else each.path


def _grid(found: Guess) -> Iterator[str]:
    people, turned = found.population, False
    if people is not None:
        turned = people.about.grid is None
        if not turned and not people.labels:
            yield _line("grid", {"like": people.path}, "maps have the grid of this raster")
            return
        if not turned:
            yield "# grid: that of the first file of the population"
            return
    crs, resolution = _own_grid(found)
    about = "a pixel's side is in units of the CRS: finer costs time"
    if people is not None and (upright := _upright(people)) is not None:
        crs, resolution = upright
        about = f"that of {people.path}, whose rows run from the south or are rotated"
    yield _line("grid", {"crs": crs, "resolution": resolution}, about)


def _upright(raster: RasterFile) -> tuple[str, float] | None:
    """Return CRS and pixel size of a raster that is not north-up; None if the CRS has no code."""
    crs, t = raster.about.crs, raster.about.transform
    authority = None if crs is None else crs.to_authority()
    side = min(np.hypot(t.a, t.d), np.hypot(t.b, t.e))
    return None if authority is None else (":".join(authority), float(f"{side:.9g}"))


def _own_grid(found: Guess) -> tuple[str, float]:
    """Return a CRS in metres and a resolution that makes some ten thousand pixels."""
    shapes = found.areas.frame.geometry
    west, _, east, _ = shapes.to_crs("OGC:CRS84").total_bounds
    zone = shapes.estimate_utm_crs() if east - west < WIDE else None
    crs = "EPSG:6933" if zone is None else f"EPSG:{zone.to_epsg()}"
    surface = float(shapes.to_crs(crs).area.sum())
    exact = np.sqrt(surface / N_PIX)
    step = 10 ** np.floor(np.log10(exact))
    return crs, float(next(k * step for k in (1, 2, 5, 10) if k * step >= exact))


def _time(found: Guess) -> Iterator[str]:
    if found.step is None:
        return
    section = {"step": found.step}
    if found.week not in (None, "monday"):
        section["week"] = str(found.week)
    yield _line("time", section, "one model of all periods; without `time` the latest is mapped")


def _model(found: Guess) -> Iterator[str]:
    response = found.response
    if response.labels:
        section = "{kind: pooled_gp, options: {pooling: noisy_or}}"
        yield f"model:       {section}   # positive: somewhere in the area; others: disagg models"
    elif response.tested is not None:
        yield "model:       {likelihood: beta_binomial}   # positives among people tested"
    elif response.likelihood is not None:
        why = "values above 0; `normal` if they may have either sign"
        why = why if response.likelihood == "gamma" else "values of either sign"
        yield f"model:       {{likelihood: {response.likelihood}}}   # {why}"


def _output(found: Guess) -> str:
    """Return the section of the outputs: values with an exposure are per unit of it."""
    response = found.response
    if response.labels:
        return "output:      {dir: out}"
    own = response.of == "average" or (response.of is not None and response.weight is not None)
    section: dict[str, object] = {"dir": "out"}
    if not own:
        section["rate_per"] = 1000
    few, what = ("[2, 3]", "values") if own else ("[50, 100]", "rates")
    about = f"exceedance: {few}: how surely {what} are above; choose some near those that check"
    about += " prints"
    if found.levels:
        section["areas"] = found.levels
        about += "; areas: they hold whole areas of the counts, and get tables, too"
    return _line("output", section, about)


def _line(key: str, section: dict[str, object] | dict[str, str], comment: str) -> str:
    return f"{key + ':':<12} {_flow(section)}   # {_plain(comment)}"


def _flow(section: dict[str, object] | dict[str, str]) -> str:
    text: str = yaml.safe_dump(
        dict(section), default_flow_style=True, sort_keys=False, allow_unicode=True, width=4096
    )
    return text.strip()


def _text(value: str) -> str:
    text: str = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=4096)
    return text.strip()[1:-1]


def _plain(text: str) -> str:
    return " ".join(text.split())
