"""What ingest does with the inputs of a period: checks them, aligns them, writes the bag store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import geopandas as gpd
import numpy as np
import shapely

from geo.core.columns import AREA_ID
from geo.core.errors import GridError, InputError, Problem, name_first
from geo.grids.grid import Grid
from geo.grids.membership import Membership, membership
from geo.grids.reproject import reproject
from geo.sources.source import Source
from geo.tables.registry import tables_kept
from geo.tables.unmatched import together
from pipeline.cluster.local import n_thread
from pipeline.config.schema import Config, work_dir
from pipeline.core.progress import Progress
from pipeline.ingest.balance import begin_balance, check_area_balance, counts_outside
from pipeline.ingest.checked import Look
from pipeline.ingest.exposure import pixel_sums
from pipeline.ingest.extent import Extent, measurable
from pipeline.ingest.inputs import Inputs, open_inputs
from pipeline.ingest.pixel_gather import PixelGatherer
from pipeline.ingest.point_tables import read_points
from pipeline.ingest.points import describe_points, place_points
from pipeline.ingest.selection import Bags, check_ranges, select_pixels
from pipeline.ingest.table_layers import own_values, rows_with_own
from pipeline.ingest.without_counts import summarise
from pipeline.ingest.zone_months import as_order
from pipeline.responses.response import Response
from pipeline.storage.location import Place
from pipeline.store import aligned_grid
from pipeline.store.aligned_grid import (
    GridSummary,
    InputLayers,
    write_aligned_grid,
)
from pipeline.store.bag_store import BagStore, NewBags, write_bags
from pipeline.store.balance import balance_of, render_balance
from pipeline.store.level_areas import titles_of

#: Changes what was opened, and appends problems.
Adapt = Callable[[Inputs, list[Problem]], Inputs]
N_NAMED = 5  # areas named in one message
N_LONG = 10**9  # pixels of a raster over the areas, from which its reading is announced
CUT_REPORTED = 0.01  # share of an area outside the grid to report; finer coastlines stay below it


def _align(inputs: Inputs) -> str:
    """Return the name of the first task, with the raster that makes it long."""
    layers = [*([inputs.population] if inputs.population else []), *inputs.covariates.values()]
    large = [each for each in layers if each.source.shape[0] * each.source.shape[1] > N_LONG]
    if not large or inputs.areas is None or not inputs.located:
        return "align"
    extent = Extent(inputs.areas)
    read = {each.place: _n_read(each.source, extent) for each in large}
    place = max(read, key=lambda each: read[each])
    if read[place] <= N_LONG:
        return "align"
    return (
        f"align: {place} has {read[place] / 1e6:,.0f} million pixels over the areas; "
        "`gdalwarp -r average` makes it coarser"
    )


def _n_read(source: Source, extent: Extent) -> float:
    n_row, n_col = source.shape
    return n_row * n_col * (extent.read_share(source) if source.north_up else 1.0)


@tables_kept()  # counts are read, examined, and searched for the lines of suspicions
def prepare(
    config: Config, grid_path: Place, progress: Progress, look: Look, adapt: Adapt | None = None
) -> tuple[Inputs, Bags]:
    """Check all inputs and write the aligned grid; raise InputError with all problems.

    Parameters
    ----------
    config : Config
    grid_path : Place
        An empty directory.
    progress : Progress
    look : callable
        See :mod:`pipeline.ingest.checked`.
    adapt : callable, optional
        Changes what was opened, and adds problems.
    """
    problems: list[Problem] = []
    inputs = open_inputs(config, problems)
    if adapt is not None:
        inputs = adapt(inputs, problems)
    members = _members(inputs, config, problems, progress)
    bags = written = None
    layers = InputLayers(inputs.covariates, inputs.population)
    # Where no raster could be opened, there is nothing to look at.
    some = inputs.covariates or inputs.population or not config.covariates
    if inputs.grid is not None and some:
        n_tile = sum(1 for _ in inputs.grid.tiles(aligned_grid.TILE))
        with progress.task(_align(inputs), n_tile) as task:
            written = write_aligned_grid(
                grid_path,
                inputs.grid,
                layers,
                members,
                everywhere=config.output.mask == "all",
                outside=counts_outside(inputs.population, inputs.grid, inputs.areas),
                workers=n_thread(config),
                advance=task.advance,
            )
        problems.extend(written.problems)
        sound = check_ranges(config, inputs, written, members is not None, problems)
        if members is not None and inputs.areas is not None:
            bags = select_pixels(config, inputs, inputs.areas, members, written, problems, sound)
            _log_overlap(members, written, progress)
    tables = read_points(config, problems)
    if bags is not None and inputs.grid is not None and not problems and config.point_sources:
        bags = replace(bags, points=place_points(config, tables, inputs, bags, problems))
    problems.extend(each for each in look(inputs, members, written) if each not in problems)
    problems = together(problems)  # of the mapped period, and of all
    grid, known = inputs.grid, inputs.responses.known
    if problems or bags is None or written is None or grid is None or known is None:
        raise InputError(problems)
    for line in inputs.repairs.lines():
        progress.log(f"ingest: areas.repair: {line}")
    if bags.points is not None:
        for key, text in describe_points(config, bags.points).items():
            progress.log(f"ingest: {key}: {text}")
    if adapt is not None:  # the balance of one period says nothing of several
        return inputs, bags
    balance = begin_balance(
        grid,
        layers,
        written,
        known,
        bags.left_out,
        total=config.response_kind.area_total,  # averages are stored as totals
        noun=config.response_kind.noun,
        workers=n_thread(config),
    )
    return inputs, replace(bags, balance=balance)


def _of_totals(inputs: Inputs, bags: Bags, y: np.ndarray) -> dict[str, Any]:
    """Return the balance of averages: what was given is the sum of values times their weight.

    Parameters
    ----------
    inputs : Inputs
    bags : Bags
    y : (n_bag,) float64 array
        Value times exposure of each bag.
    """
    given = float(np.nansum(y))
    counts, weights = inputs.responses.counts, inputs.responses.weights
    if counts is not None and weights is not None:
        # Without a column of weights, an area that is left out has no known exposure.
        totals = counts.to_numpy(np.float64) * weights.to_numpy(np.float64)
        given += float(np.nansum(np.delete(totals, bags.area)))
    cases = {**bags.balance["cases"], "given": given}
    return {**bags.balance, "cases": cases}


def _members(
    inputs: Inputs, config: Config, problems: list[Problem], progress: Progress
) -> Membership | None:
    grid, areas = inputs.grid, inputs.areas
    if grid is None or areas is None or not inputs.located:
        return None
    usable = measurable(areas)
    if not usable.any():
        return None
    place = f"areas ({config.areas.path})"
    try:
        geometry = reproject(areas.geometry[usable], grid)
        measured = membership(geometry, grid)
    except GridError:
        found = f"lie outside the CRS of the grid ({grid.crs.name})"
        remedy = "give a grid in a CRS that covers them, or correct their CRS"
        problems.append(Problem(place, found, remedy))
        return None
    rows = np.flatnonzero(usable)
    sizes = np.zeros(len(areas), np.int64)
    sizes[rows] = np.diff(measured.offsets)
    members = Membership(np.concatenate([[0], np.cumsum(sizes)]), measured.pixel, measured.fraction)
    if members.pixel.size == 0:
        # The bounds overlap, yet no polygon has a pixel.
        grid_place = f"grid.like ({config.grid.like})" if config.grid.like else "grid"
        remedy = "give the grid of a raster that covers them"
        problems.append(Problem(grid_place, "does not overlap the areas", remedy))
        return None
    titles = titles_of(areas, config.areas.name)[rows]
    words = config.response_kind
    _log_cut(members, titles, rows, geometry, grid, words, progress)
    check_area_balance(place, titles, areas.geometry[usable], geometry, measured, grid, problems)
    return members


def _log_cut(
    members: Membership,
    titles: np.ndarray,
    rows: np.ndarray,
    geometry: gpd.GeoSeries,
    grid: Grid,
    words: Response,
    progress: Progress,
) -> None:
    """Log the areas that reach past the grid: no bag has their people outside it."""
    covered = members.total(members.fraction)[rows]
    share = 1 - covered * grid.res[0] * grid.res[1] / shapely.area(np.asarray(geometry.array))
    cut = np.flatnonzero((share > CUT_REPORTED) & (covered > 0))
    if cut.size:
        named = name_first([f"{titles[k]} {100 * share[k]:.0f} %" for k in cut], N_NAMED)
        progress.log(
            f"ingest: {cut.size} areas reach past the grid; all their {words.total} count, but not "
            f"their people outside it: {named}"
        )


def _log_overlap(members: Membership, written: GridSummary, progress: Progress) -> None:
    surface = float(members.fraction.sum(dtype=np.float64))
    over = surface - written.covered
    if over > 0.001 * surface:
        progress.log(
            f"ingest: areas overlap by {100 * over / surface:.2g} % of their surface; the people "
            "there count in each of them"
        )


def write_store(
    config: Config,
    inputs: Inputs,
    bags: Bags,
    grid_path: Place,
    bags_path: Place,
    fingerprint: str,
    progress: Progress,
    *,
    together: Mapping[str, int] | None = None,
) -> None:
    """Copy the pixels of every bag from the aligned grid to the bag store.

    Areas with the same number in ``together`` stay neighbours: they are one bag in some period.
    """
    grid, areas, given = inputs.grid, inputs.areas, inputs.responses.arrays(bags.area)
    if grid is None or areas is None or "counts" not in given:
        message = "grid, areas and counts are required once the inputs are checked"
        raise RuntimeError(message)
    covariates = tuple(inputs.covariates)
    words = config.response_kind
    n_pix = int(bags.offsets[-1])
    with (
        PixelGatherer(bags, grid, grid_path, work_dir(config)) as gatherer,
        progress.task("bags", 2 * n_pix) as task,
    ):
        gatherer.spread(n_thread(config), task.advance)
        y = given["counts"]
        if not words.adds_up:
            total = given.get("weights")
            if total is None:
                total = pixel_sums(gatherer.rows, np.diff(bags.offsets))
            if bags.balance:
                bags = replace(bags, balance=_of_totals(inputs, bags, y * total))
        ids = [str(i) for i in areas[AREA_ID].to_numpy()[bags.area]]
        write_bags(
            bags_path,
            NewBags(
                sizes=np.diff(bags.offsets),
                rows=rows_with_own(gatherer.rows, own_values(inputs.covariates, bags.area)),
                y=y,
                training=np.isfinite(y),
                exposure=given.get("weights"),
                margin=given.get("margins"),
                averaged=not words.adds_up,
                period=config.period or "",
                trials=given.get("tested"),
                ids=ids,
                together=as_order(together or {}, ids),
                covariates=covariates,
                units=[inputs.covariates[name].source.describe().unit for name in covariates],
                grid=grid.to_dict(),
                coords_crs=gatherer.positions.crs.to_wkt(),
                n_axis=gatherer.positions.n_axis,
                attrs={
                    "left_out": bags.left_out,
                    **({"balance": bags.balance} if bags.balance else {}),
                    **({"repairs": inputs.repairs.to_dict()} if inputs.repairs else {}),
                    "name": config.name,
                    "weight_unit": words.weight_unit,
                },
            ),
            seed=config.fit.seed,
            fingerprint=fingerprint,
            workers=n_thread(config),
            advance=task.advance,
        )


def suppressed_summary(store: BagStore) -> dict[str, int]:
    """Return how many counts of a store are suppressed; nothing where none is."""
    n = int(np.isnan(store.observed[store.in_training]).sum())
    return {"n_suppressed": n} if n else {}


def _told_pixels(everything: BagStore) -> str:
    """Say how many pixels the areas have, and the fit, and how many are left out: they add up."""
    store, left = everything.training, everything.attrs["left_out"]
    text = f"{everything.n_bag:,} areas, {everything.n_pix:,} pixels in them"
    text += ", those of borders in each"
    reasons = {
        "no_covariate": "lack a covariate",
        "no_population": "lack population",
        "nobody": "have no people",
    }
    why = [f"{left[key]:,} {word}" for key, word in reasons.items() if left[key]]
    of_areas = left["of_pixels"] - left["pixels"] - everything.n_pix
    if of_areas:
        why.append(f"{of_areas:,} are of areas that are left out")
    if why:
        n = left["pixels"] + of_areas
        text += f"; left out {n:,} of {left['of_pixels']:,}: {', '.join(why)}"
    if store.n_bag < everything.n_bag:
        text += f"; in the fit, {store.n_bag:,} areas with {store.n_pix:,} pixels"
    return text


def summary_of(everything: BagStore, config: Config, progress: Progress) -> dict[str, Any]:
    """Log and return what was written."""
    store = everything.training
    left, words = store.attrs["left_out"], config.response_kind
    progress.log(f"ingest: {_told_pixels(everything)}")
    if left["weight"] > 0:
        unit = "people" if config.population is not None else "km2"
        progress.log(f"ingest: {left['weight']:,.0f} {unit} in pixels that lack a covariate")
    gaps = {name: n for name, n in left["by_covariate"].items() if n}
    if gaps:
        progress.log("ingest: missing pixels: " + ", ".join(f"{k} {n:,}" for k, n in gaps.items()))
    if left["areas"]:
        named = name_first(left["areas"], N_NAMED)
        progress.log(f"ingest: left out areas without {words.nothing}: {named}")
    balance = balance_of(everything)
    if balance is not None:
        progress.log(render_balance(balance, f"{store.attrs['name']}: balance"))
    return {
        "n_areas": store.n_bag,
        "n_pixels": store.n_pix,
        "n_blocks": store.n_block,
        "covariates": list(store.covariates),
        "exposure_total": float(store.bag_weight.sum()),
        "cases_total": float(np.nansum(store.observed)),
        **suppressed_summary(store),
        "left_out": left,
        "balance": balance,
        **summarise(everything, config, progress),
    }
