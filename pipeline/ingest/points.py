"""Points beside areas: their tables, the pixels where each may be, and their store.

A survey cluster whose coordinates were displaced is a bag of the pixels within the displacement's
reach, in proportion to their people and the density of the displacement; a facility is a bag of the
people of its catchment, what is left of a zone's count one of the people of its areas without any
(:mod:`pipeline.ingest.zones`). ``docs/design/points.md`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from geo.core.columns import AREA_ID
from geo.core.errors import Problem
from geo.grids.displacement import RURAL, URBAN, Candidates, Law, candidates, catchments
from pipeline.config.point_schema import Points
from pipeline.config.schema import Config, work_dir
from pipeline.ingest.inputs import Inputs
from pipeline.ingest.pixel_gather import PixelGatherer
from pipeline.ingest.selection import Bags
from pipeline.ingest.zones import Taken, rest_of_zones
from pipeline.storage.location import Place
from pipeline.store.bag_store import NewBags, write_bags
from pipeline.store.bag_writer import PixelRows
from pipeline.store.point_store import left_out_words


@dataclass(frozen=True)
class Placed:
    """Points with their pixels, one source after the other; those without any are left out.

    Attributes
    ----------
    table : DataFrame
        ``source`` (number from 1 on), ``name`` of the source, ``id``, ``lon``, ``lat``, ``value``
        and ``tested`` of each point.
    offsets, pixel, fraction : (n_point + 1,) int64, (n,) int64, (n,) float64
        Pixels of each point, and what is multiplied by the people of each.
    left_out : dict
        By source, the points without a value or place, and those without a usable pixel.
    """

    table: pd.DataFrame
    offsets: np.ndarray
    pixel: np.ndarray
    fraction: np.ndarray
    left_out: dict[str, dict[str, int]]


def place_points(
    config: Config, tables: list[pd.DataFrame], inputs: Inputs, bags: Bags, problems: list[Problem]
) -> Placed | None:
    """Find the usable pixels of each point: those of areas that have covariates and people.

    Parameters
    ----------
    config : Config
    tables : list of DataFrame
        From :func:`read_points`.
    inputs : Inputs
        With a grid and areas.
    bags : Bags
        Usable pixels of the areas.
    problems : list of Problem
        Sources without any point on usable pixels, and zones that do not fit their areas, are
        appended.
    """
    usable = np.unique(bags.pixel)
    kept, sizes, pixels, fractions = [], [], [], []
    left: dict[str, dict[str, int]] = {}
    placed = _all_places(config, tables, inputs, bags, problems)
    for number, (spec, own) in enumerate(zip(config.point_sources, placed, strict=True), start=1):
        table, found, left[spec.name] = own
        inside = np.isin(found.pixel, usable)
        bag = np.repeat(np.arange(len(table)), np.diff(found.offsets))[inside]
        size = np.bincount(bag, minlength=len(table))
        left[spec.name]["outside"] = int((size == 0).sum())
        if len(table) and not size.any():
            found_ = "no point is on a pixel of an area that has covariates and people"
            remedy = "check lon and lat (degrees), or give points of this country"
            problems.append(Problem(f"points.{spec.name} ({spec.path})", found_, remedy))
        kept.append(table[size > 0].assign(source=number, name=spec.name))
        sizes.append(size[size > 0])
        pixels.append(found.pixel[inside])
        fractions.append(found.mass[inside])
    if not sum(map(len, kept)):
        return None
    return Placed(
        pd.concat(kept, ignore_index=True),
        np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64),
        np.concatenate(pixels),
        np.concatenate(fractions),
        left,
    )


def _all_places(
    config: Config, tables: list[pd.DataFrame], inputs: Inputs, bags: Bags, problems: list[Problem]
) -> list[tuple[pd.DataFrame, Candidates, dict[str, int]]]:
    """Return :func:`_places` of each source: of small zones first, which larger ones take off."""
    assert inputs.areas is not None
    areas, found, taken = inputs.areas, {}, dict[str, Taken]()
    zones = [
        0 if spec.zone not in areas.columns else -areas[spec.zone].nunique()
        for spec in config.point_sources
    ]
    for k in np.argsort(zones, kind="stable").tolist():
        spec = config.point_sources[k]
        found[k] = _places(spec, tables[k], inputs, bags, taken, problems)
    return [found[k] for k in range(len(zones))]


def _places(
    spec: Points,
    table: pd.DataFrame,
    inputs: Inputs,
    bags: Bags,
    taken: dict[str, Taken],
    problems: list[Problem],
) -> tuple[pd.DataFrame, Candidates, dict[str, int]]:
    """Return the points of a source that have a place, their pixels, and those left out."""
    needed = [*([] if spec.zone else ["lon", "lat"]), "value", *(["tested"] if spec.tested else [])]
    # Surveys write (0, 0) for clusters whose place is not known.
    known = table[needed].notna().all(axis=1) & ~((table["lon"] == 0) & (table["lat"] == 0))
    left, table = {"without_value_or_place": int((~known).sum())}, table[known]
    if spec.zone is not None:
        rest = rest_of_zones(spec, table, inputs, bags, taken, problems)
        if rest is None:
            none = np.zeros(0)
            return table[:0], Candidates(np.zeros(1, np.int64), none.astype(np.int64), none), left
        return rest.table, rest.pixels, left | rest.left_out
    assert inputs.grid is not None
    lon, lat = (table[key].to_numpy(np.float64) for key in ("lon", "lat"))
    if spec.catchment is not None:
        return table, catchments(inputs.grid, lon, lat, float(spec.catchment)), left
    laws = [_law(spec, each) for each in table["urban"]]
    return table, candidates(inputs.grid, lon, lat, laws), left


def _law(spec: Points, urban: bool | None) -> Law:
    """Return the law of displacement of a point."""
    if spec.radius == "dhs":
        return URBAN if urban else RURAL
    return ((float(spec.radius), 1.0),)


def describe_points(config: Config, placed: Placed) -> dict[str, str]:
    """Say by configuration key how many points there are, and why others are left out."""
    found = {}
    for spec in config.point_sources:
        own = placed.table[placed.table["name"] == spec.name]
        left = placed.left_out[spec.name]
        total = f"{own['value'].sum():,.0f}"
        what = f"{total} of {own['tested'].sum():,.0f} tested" if spec.tested else f"{total} cases"
        lacking = left_out_words(left)
        kind = "points" if spec.zone is None else "zones without the counts of their areas"
        found[f"points.{spec.name}"] = f"{len(own):,} {kind}, {what}" + (
            f"; left out {lacking}" if lacking else ""
        )
    return found


def write_points(
    config: Config,
    inputs: Inputs,
    bags: Bags,
    placed: Placed,
    grid_path: Place,
    path: Place,
    fingerprint: str,
) -> None:
    """Write ``work/points.zarr``: a bag store whose attribute ``points`` tells of each bag."""
    grid, areas = inputs.grid, inputs.areas
    if grid is None or areas is None:
        message = "grid and areas are required once the inputs are checked"
        raise RuntimeError(message)
    table, sizes = placed.table, np.diff(placed.offsets)
    covariates = tuple(inputs.covariates)
    with PixelGatherer(placed, grid, grid_path, work_dir(config)) as gatherer:
        gatherer.spread()
        n = sizes.size
        rows = gatherer.rows(np.arange(n), np.zeros(n, np.int64), sizes)
        positions = gatherer.positions
    bag = np.repeat(np.arange(n), sizes)
    whole = [spec.tested is None for spec in config.point_sources]
    summed = np.array(whole)[table["source"].to_numpy() - 1]
    total = np.bincount(bag, rows.weight, n)
    # A rate is the mean over the people of the pixels; cases are a sum over them.
    rows = PixelRows(
        rows.x, rows.weight / np.where(summed, 1.0, total)[bag], rows.coords, rows.pixel
    )
    ids = np.array([str(each) for each in areas[AREA_ID].to_numpy()[bags.area]])
    owner = _owners(bags, rows.pixel)
    most = pd.DataFrame({"bag": bag, "area": owner, "weight": rows.weight})
    most = most.groupby(["bag", "area"], as_index=False)["weight"].sum()
    first = most.sort_values(["bag", "weight"], kind="stable").groupby("bag")["area"].last()

    def read(number: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        spans = zip(placed.offsets[number] + start, placed.offsets[number] + stop, strict=True)
        return PixelRows.join([rows.cut(int(a), int(b)) for a, b in spans])

    told: dict[str, Any] = {
        "names": [spec.name for spec in config.point_sources],
        "source": table["source"].tolist(),
        "id": table["id"].tolist(),
        "lon": table["lon"].tolist(),
        "lat": table["lat"].tolist(),
        "area": ids[first.to_numpy()].tolist(),
        "left_out": placed.left_out,
    }
    write_bags(
        path,
        NewBags(
            sizes=sizes,
            rows=read,
            y=table["value"].to_numpy(np.float64),
            trials=table["tested"].to_numpy(np.float64),
            ids=(table["name"] + "/" + table["id"]).tolist(),
            covariates=covariates,
            units=[inputs.covariates[name].source.describe().unit for name in covariates],
            grid=grid.to_dict(),
            coords_crs=positions.crs.to_wkt(),
            n_axis=positions.n_axis,
            attrs={"points": told, "name": config.name},
        ),
        seed=config.fit.seed,
        fingerprint=fingerprint,
        order=np.arange(n),
    )


def _owners(bags: Bags, pixel: np.ndarray) -> np.ndarray:
    """Return the bag that has most of each pixel, (n,); every pixel is in one."""
    bag = np.repeat(np.arange(bags.area.size), np.diff(bags.offsets))
    order = np.lexsort((bags.fraction, bags.pixel))
    last = np.searchsorted(bags.pixel[order], pixel, side="right") - 1
    return np.asarray(bag[order[last]])
