"""The report stage: the page, its pictures and the catalogue, from what other stages left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio
from matplotlib.figure import Figure

from geo.writers.raster_files import RasterFiles
from pipeline.catalogue.write import write_catalogue
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Progress
from pipeline.evaluation.verdict import in_words, without_figures
from pipeline.levels.level_files import write_joint_files
from pipeline.products.colours import level_product, raster_scale
from pipeline.products.level_products import TARGETING_PNG
from pipeline.products.products import (
    AREAS_GPKG,
    AREAS_LAYER,
    EVALUATION,
    PREVIEW,
    REPORT,
    REPORT_PICTURES,
    raster,
)
from pipeline.reporting.borders import Borders
from pipeline.reporting.encode import Job, encoded, pdf, png
from pipeline.reporting.figures import (
    DPI,
    Drawn,
    draw_calibration,
    draw_fit,
    draw_raster,
    draw_residuals,
    draw_targeting,
)
from pipeline.reporting.in_time import PartsInTime
from pipeline.reporting.maps import map_data
from pipeline.reporting.over_time import area_lines, read_periods
from pipeline.reporting.page import Found, page_content
from pipeline.reporting.plane import areas_on_plane
from pipeline.reporting.preview import Panel, draw_preview, titled
from pipeline.reporting.rasters import comparison_of
from pipeline.reporting.render import render
from pipeline.reporting.series_figures import draw_series
from pipeline.reporting.tables import name_column, other_tables, read_targeting
from pipeline.storage.files import atomic_write
from pipeline.storage.fingerprint import fingerprint_value
from pipeline.store.balance import read_balance
from pipeline.store.point_store import FILE as POINTS
from pipeline.store.point_store import PointStore, left_out_words
from pipeline.training.series import open_map

BESIDE_DPI = 150  # of pictures that lie beside the maps


def report_stage(context: StageContext) -> dict[str, Any]:
    """Write the page, its pictures, the QGIS project and the STAC catalogue.

    The same run gives the same bytes: neither a date nor a time of the machine is on the page.

    Parameters
    ----------
    context : StageContext
        The configuration's ``output.dir`` holds the maps, the table of areas and ``work/``.

    Returns
    -------
    dict
        ``bytes`` of the page, ``pictures`` in it, ``evaluated``: whether it has an evaluation,
        ``catalogue``: names of the files of the project and of the catalogue.

    Raises
    ------
    StoreError
        If the bag store is absent or damaged.
    """
    config, progress = context.config, context.progress
    out = Path(config.output.dir)
    found_map = open_map(context)
    config, whole, model = found_map.config, found_map.areas, found_map.model
    store = whole.training
    evaluation = read_evaluation(out, context.record, context.config)
    if evaluation is None and (out / EVALUATION.file).is_file():
        progress.log(
            f"report: {EVALUATION.file} is of an earlier fit or of other intervals, and left out; "
            "run `disagg evaluate`"
        )
    verdict = without_figures(evaluation)
    said = in_words(evaluation)
    with RasterFiles() as files:
        with progress.task("report", 4) as task:
            areas = pyogrio.read_dataframe(out / AREAS_GPKG.file, layer=AREAS_LAYER)
            borders, targeting = Borders(areas, files), read_targeting(out)
            named = name_column(areas, str(areas.columns[0]), config.areas.name)
            names = [str(each) for each in areas[named]]
            raster = out / level_product(config).file
            plane, shapes = areas_on_plane(borders, raster if raster.is_file() else None, files)
            task.advance()
            periods = read_periods(config, out)
            data = map_data(config, out, files, areas, names, plane, shapes, periods)
            task.advance()
            drawn = _draw(config, out, files, borders, evaluation, shapes)
            curve = draw_targeting(config, targeting, said)
            over_time = draw_series(
                config, periods, dict(zip(areas.iloc[:, 0].astype(str), names, strict=True))
            )
            drawn += [each for each in (curve, over_time) if each is not None]
            preview = draw_preview(config, out, said, files, borders)
            drawn = _write_pictures(config, out, drawn, preview, progress)
            write_joint_files(config, out, said, files)
            task.advance()
            kind = config.response_kind
            found = Found(
                config=config,
                record=context.record,
                evaluation=evaluation,
                balance=read_balance(out, whole),
                areas=areas.drop(columns="geometry"),
                names=names,
                lines=area_lines(periods),
                sizes=_sizes(store, raster, files) | _n_values(context.record),
                others=other_tables(out, comparison_of(config, out), kind, targeting),
                points=_points_left_out(context),
                in_time=_in_time(config, model),
            )
            page = render(page_content(found), drawn, data)
            with atomic_write(out / REPORT.file) as file:
                file.write(page)
            task.advance()
        # Last: the catalogue has the checksum of every other file.
        catalogue = write_catalogue(config, out, model, progress, verdict, files)
    progress.log(f"report: {out / REPORT.file}, {len(page) / 1e6:.1f} MB")
    return {
        "bytes": len(page),
        "pictures": len(drawn),
        "evaluated": evaluation is not None,
        "catalogue": catalogue,
    }


def read_evaluation(
    out: Path, record: Mapping[str, Any], config: Config | None = None
) -> dict[str, Any] | None:
    """Read ``evaluation.json``; None if there is none, or if it is of another fit or interval.

    Parameters
    ----------
    out : Path
    record : mapping
        Of the stages; without one of the evaluation it is taken as it is.
    config : Config, optional
        Of the maps, as it was given.
    """
    try:
        found: dict[str, Any] = json.loads((out / EVALUATION.file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    own, model = (record.get(name, {}) for name in ("evaluate", "fit"))
    used, made = own.get("inputs", {}), model.get("outputs", {})
    same = all(used[path] == made[path] for path in made if path in used)
    if config is not None:
        for key in ("interval", "draws"):
            recorded = used.get(f"output.{key}")
            same &= recorded in (None, fingerprint_value(getattr(config.output, key)))
    return found if same else None


def _write_pictures(
    config: Config,
    out: Path,
    drawn: Sequence[Drawn],
    preview: Figure | None,
    progress: Progress,
) -> list[Drawn]:
    """Write the pictures that lie beside the maps; return all of the page with their bytes.

    They are encoded at once where this process may fork: no raster is read there.
    """
    title = titled(config)
    jobs: dict[str, Job] = {
        REPORT_PICTURES.file: partial(pdf, [each.figure for each in drawn], config.name)
    }
    if preview is not None:
        jobs[PREVIEW.file] = partial(png, preview, BESIDE_DPI, title)
    # The picture of targeting lies beside the maps, and is on the page: it is drawn for both.
    names = {each.key: f"{each.key}.page" for each in drawn} | {"targeting": TARGETING_PNG.file}
    for each in drawn:
        beside = each.key == "targeting"
        how = (BESIDE_DPI, title) if beside else (DPI,)
        jobs[names[each.key]] = partial(png, each.figure, *how)
    made = encoded(jobs, n_thread(config), progress)
    for name in (PREVIEW.file, TARGETING_PNG.file, REPORT_PICTURES.file):
        if name in made:
            with atomic_write(out / name) as file:
                file.write(made[name])
    return [replace(each, png=made[names[each.key]]) for each in drawn]


def _sizes(store: Any, raster: Path, files: RasterFiles) -> dict[str, Any]:
    sizes: dict[str, Any] = {"n_areas": store.n_bag, "n_pixels": store.n_pix}
    if raster.is_file():
        with files.open(raster) as source:
            sizes |= {"shape": source.shape, "crs": source.crs}
    return sizes


def _n_values(record: Mapping[str, Any]) -> dict[str, int]:
    """Return how many values all periods of a series have, as the fit read them."""
    counts = (record.get("fit", {}).get("summary", {}).get("series") or {}).get("counts")
    return {"n_values": sum(counts.values())} if counts else {}


def _points_left_out(context: StageContext) -> list[str]:
    """Return what ingest left out of each source beside the areas, in sentences."""
    if not context.config.point_sources:
        return []
    left = PointStore.open(context.place(POINTS)).about["left_out"]
    told = {name: left_out_words(own) for name, own in left.items()}
    return [f"Left out of {name}: {text}." for name, text in told.items() if text]


def _in_time(config: Config, model: Any) -> PartsInTime | None:
    """Return the parts of the kernel of a series; None for a map of one period."""
    if config.series is None:
        return None
    return PartsInTime(model.text(model.fitted_state().fixed), config.series.calendar.step)


def _draw(
    config: Config,
    out: Path,
    files: RasterFiles,
    borders: Borders,
    evaluation: Any,
    shapes: np.ndarray,
) -> list[Drawn]:
    """Draw the static pictures that the run has."""
    drawn, areas = [], borders.areas
    words = config.response_kind
    level, spread = level_product(config), raster(words.spread_maps[-1])
    unit = words.map_label
    kinds = (
        (level, "rate", f"Mean {words.quantity}", unit),
        (spread, "spread", f"Uncertainty of the {words.quantity}", f"standard deviation, {unit}"),
    )
    for product, key, title, label in kinds:
        scale = raster_scale(config, out, product, files)
        if scale is None:
            continue
        alt = f"Map: {title.lower()}, {label}. Dark is high."
        figure = draw_raster(out / product.file, Panel(title, label, scale), files, borders)
        drawn.append(Drawn(key, f"{config.name}: {title}", alt, figure))
    drawn.append(draw_fit(config, areas))
    calibration = None if evaluation is None else draw_calibration(evaluation)
    if calibration is not None:
        drawn.append(calibration)
    if "residual" in areas:
        drawn.append(draw_residuals(shapes, areas["residual"].to_numpy(np.float64)))
    return drawn
