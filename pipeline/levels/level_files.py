"""Write the tables of levels: GeoPackage, GeoParquet, CSV, and a workbook with a glossary."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
from openpyxl import Workbook
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from geo.core.text_safety import one_line_text, spreadsheet_safe
from geo.writers.colours import Scale
from geo.writers.geopackage import LayerDescription, describe_layer, graduated_style
from geo.writers.raster_files import RasterFiles
from geo.writers.write_errors import explained_write_errors, write_error
from pipeline.config.level_schema import COUNTRY, TRAINING
from pipeline.config.schema import Config
from pipeline.core.code import installed_version
from pipeline.products.colours import raster_scale
from pipeline.products.csv_table import write_csv
from pipeline.products.level_columns import Column, describe_columns
from pipeline.products.level_products import LEVELS_GPKG, LEVELS_XLSX, level_files
from pipeline.products.products import RATE_MEAN
from pipeline.storage.files import atomic_write
from pipeline.store.level_areas import Level

GLOSSARY, VERDICT = "glossary", "(the map)"
PAGE_WIDTH = 200  # characters across a printed page, smaller than usual
# The workbook's own font: without a name, other programs than Excel take another one.
_HEADING = Font(name="Calibri", size=11, bold=True)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same tables have the same bytes, whenever they are written
_STAMP = re.compile(rb"(<dcterms:(created|modified)[^>]*>)[^<]*(</)")


def write_levels(levels: Mapping[str, tuple[Level, pd.DataFrame]], directory: Path) -> None:
    """Write the table of every level as CSV and GeoParquet into a directory.

    Parameters
    ----------
    levels : mapping
        Areas and table of each level, by its name.
    directory : Path

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    for name, (level, table) in levels.items():
        frame = gpd.GeoDataFrame(table, geometry=level.geometry.to_numpy(), crs=level.geometry.crs)
        csv, parquet = (directory / file for file in level_files(name))
        write_csv(table, csv)
        with explained_write_errors(parquet, [parquet]):
            frame.to_parquet(parquet, index=False)


def write_joint_files(
    config: Config, directory: Path, verdict: str, files: RasterFiles | None = None
) -> None:
    """Write the GeoPackage and the workbook of all levels, with what the evaluation found.

    Parameters
    ----------
    config : Config
    directory : Path
        It holds the GeoParquet files, and the run's rasters, whose colours the areas share.
    verdict : str
        See :func:`pipeline.evaluation.verdict.in_words`.
    files : RasterFiles, optional
        Those that the caller has open.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    # Written aside and moved: readers never see a part of it.
    target, tables = directory / LEVELS_GPKG.file, {}
    package = directory / f".partial-{LEVELS_GPKG.file}"
    names = (TRAINING, *(spec.level for spec in config.output.areas), COUNTRY)
    package.unlink(missing_ok=True)
    scale = raster_scale(config, directory, RATE_MEAN, files)
    for name in names:
        path = directory / level_files(name)[1]
        if not path.is_file():
            continue
        frame = gpd.read_parquet(path)
        table = tables[name] = pd.DataFrame(frame.drop(columns="geometry"))
        columns = describe_columns(config, table.columns)
        # GeoPackage takes "id" for a key of its own if it is whole numbers: ids here are texts.
        with explained_write_errors(target, [package]):
            frame.to_file(package, layer=name, driver="GPKG")
            whole = gpd.read_file(package, layer=name)
        if not _same(whole, table):
            raise write_error(target, [package])
        describe_layer(package, name, _layer(config, name, columns, scale, verdict))
    if tables:
        package.replace(target)
        write_workbook(config, tables, directory, verdict)


def _same(written: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Return whether a file holds the numbers of a table: GDAL may not report a full disk."""
    numbers = table.select_dtypes("number").columns
    return len(written) == len(table) and all(
        name in written and np.array_equal(written[name], table[name], equal_nan=True)
        for name in numbers
    )


def _layer(
    config: Config, level: str, columns: list[Column], scale: Scale | None, verdict: str
) -> LayerDescription:
    aliases = {c.name: f"{c.meaning} ({c.unit})" if c.unit else c.meaning for c in columns}
    period = f", {config.period}" if config.period else ""
    unit = config.response_kind.rate_unit
    style = "" if scale is None else graduated_style("rate", scale, unit, aliases)
    about = f"{aliases['rate']}{period}; {config.model.kind}, disagg {installed_version('disagg')}"
    about += f"; the map: {verdict}"
    return LayerDescription(f"{config.name}{period}: {level}", about, aliases, style)


def write_workbook(
    config: Config, tables: Mapping[str, pd.DataFrame], directory: Path, verdict: str
) -> None:
    """Write ``levels.xlsx``: a sheet a level, and a glossary of all columns.

    Parameters
    ----------
    config : Config
    tables : mapping of str to DataFrame
    directory : Path
    verdict : str
    """
    book = Workbook()
    book.remove(book.active)
    for name, table in tables.items():
        _fill(book, name, table)
    # A column that is new in some level is explained as well, in the order of the tables.
    every = describe_columns(config, {column for table in tables.values() for column in table})
    glossary = pd.DataFrame(
        [(VERDICT, verdict, ""), *((c.name, c.meaning, c.unit) for c in every)],
        columns=["column", "meaning", "unit"],
    )
    _fill(book, GLOSSARY, glossary, wide=True)
    raw = io.BytesIO()
    book.save(raw)
    with atomic_write(directory / LEVELS_XLSX.file) as file:
        file.write(timeless(raw.getvalue()))


def _fill(book: Workbook, name: str, table: pd.DataFrame, *, wide: bool = False) -> None:
    sheet = book.create_sheet(name)
    sheet.append([str(spreadsheet_safe(column)) for column in table.columns])
    for cell, column in zip(sheet[1], table.columns, strict=True):
        cell.font = _HEADING
        side = "right" if pd.api.types.is_numeric_dtype(table[column]) else "left"
        cell.alignment = Alignment(horizontal=side, vertical="top")
    for row in table.itertuples(index=False):
        sheet.append([_cell(value) for value in row])
    n_name = 2 if "name" in table.columns[1:2] else 1  # columns that say which area a row is
    sheet.freeze_panes = f"{get_column_letter(n_name + 1)}2"
    if len(table):
        sheet.auto_filter.ref = sheet.dimensions
    for number, column in enumerate(table.columns, 1):
        longest = max([len(str(column)), *(len(v) for v in table[column] if isinstance(v, str))])
        width = min(longest + 2, 100 if wide else 32)
        sheet.column_dimensions[get_column_letter(number)].width = max(width, 9)
        if pd.api.types.is_numeric_dtype(table[column]):
            shown = _format(table[column])
            for (cell,) in sheet.iter_rows(min_row=2, min_col=number, max_col=number):
                cell.number_format = shown
    widths = [each.width for each in sheet.column_dimensions.values()]
    _set_page(sheet, math.ceil(sum(widths) / PAGE_WIDTH), n_name)


def _set_page(sheet: Worksheet, n_across: int, n_name: int) -> None:
    """Set how a sheet is printed: every page has the headings, and says which area a row is."""
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", sheet.PAPERSIZE_A4
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = n_across, 0  # 0: as long as it is
    sheet.print_title_rows = "1:1"
    sheet.print_title_cols = f"A:{get_column_letter(n_name)}"
    sheet.oddFooter.center.text = "&A, page &P of &N"


def _format(values: pd.Series) -> str:
    """Return how Excel shows a column; the cells hold the numbers in full."""
    largest = values.abs().max()
    if not np.isfinite(largest) or largest < 10:
        whole = bool((values.dropna() % 1 == 0).all())
        return "0" if whole else "0.000"
    return "#,##0" if largest >= 1000 else "0.0"


def _cell(value: object) -> object:
    if isinstance(value, float):
        return None if not np.isfinite(value) else int(value) if value == int(value) else value
    # A workbook takes no control characters.
    return spreadsheet_safe(one_line_text(value) if isinstance(value, str) else value)


def timeless(workbook: bytes) -> bytes:
    """Return the bytes of a workbook without the time at which it was written."""
    stamp = datetime(*_EPOCH[:3]).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(workbook)) as source,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name == "docProps/core.xml":
                content = _STAMP.sub(rb"\g<1>" + stamp + rb"\g<3>", content)
            target.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return result.getvalue()
