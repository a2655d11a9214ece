"""The ingest stage: reads boundaries, counts and rasters; writes the aligned grid and bag store.

The stage reports all problems of the inputs at once. It imputes nothing: it leaves pixels that lack
a covariate or population out of their bags, and counts them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import geopandas as gpd
import numpy as np
import shapely

from geo.columns import AREA_ID
from geo.errors import GridError, InputError, Problem, name_first
from geo.grid import Grid
from geo.membership import Membership, membership
from geo.reproject import reproject
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.response_words import ResponseWords
from pipeline.config.schema import Config, work_dir
from pipeline.core.progress import Progress
from pipeline.ingest.balance import begin_balance, check_area_balance, counts_outside
from pipeline.ingest.checked import Checked, Look, checked, suspicions_logged
from pipeline.ingest.exposure import Exposure
from pipeline.ingest.inputs import Inputs, open_inputs
from pipeline.ingest.pixel_gather import PixelGatherer
from pipeline.ingest.selection import Bags, check_ranges, measurable, select_pixels
from pipeline.ingest.without_counts import (
    is_store_current,
    remove_store,
    split_bags,
    store_attrs,
    summarise,
)
from pipeline.storage.local_commit import is_current, staged
from pipeline.storage.location import Place
from pipeline.store import aligned_grid
from pipeline.store.aligned_grid import (
    GridSummary,
    InputLayers,
    write_aligned_grid,
)
from pipeline.store.bag_store import BagStore, NewBags, write_bags
from pipeline.store.bag_writer import FORMAT as BAGS_FORMAT
from pipeline.store.bag_writer import VERSION as BAGS_VERSION
from pipeline.store.bag_writer import Rows
from pipeline.store.balance import balance_of, render_balance
from pipeline.store.joined_stores import WITHOUT_COUNTS, open_without_counts
from pipeline.store.level_areas import titles_of

N_NAMED = 5  # areas named in one message
CUT_REPORTED = 0.01  # share of an area outside the grid to report; finer coastlines stay below it


def ingest(context: StageContext) -> dict[str, Any]:
    """Write ``work/grid.zarr`` and ``work/bags.zarr``, unless they are up to date.

    Areas without a count have a store of their own: see `pipeline.ingest.without_counts`.

    Parameters
    ----------
    context : StageContext
        Finished stores of the same fingerprint are reused; without a fingerprint, none is.

    Returns
    -------
    dict
        Numbers of areas, pixels and blocks, total people and cases, what was left out and
        repaired, and the areas without a count.

    Raises
    ------
    InputError
        With all problems of the inputs; nothing is written then.
    """
    config, progress, fingerprint = context.config, context.progress, context.fingerprint
    grid_path, bags_path = context.place("work/grid.zarr"), context.place("work/bags.zarr")
    others_path = context.place(WITHOUT_COUNTS)
    if not (
        fingerprint
        and is_current(grid_path, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint)
        and is_current(bags_path, BAGS_FORMAT, BAGS_VERSION, fingerprint)
        and is_store_current(bags_path, others_path, fingerprint)
    ):
        with staged(grid_path, aligned_grid.FORMAT, aligned_grid.VERSION, fingerprint) as staging:
            inputs, bags = _prepare(config, staging, progress, suspicions_logged(config, progress))
            bags, others = split_bags(bags, _counted(inputs))
            paths = [(bags, bags_path)]
            if others is None:
                remove_store(others_path)
            else:
                paths.insert(0, (others, others_path))
            exposure = 0.0
            for part, path in paths:
                attrs = {"exposure_without_counts": exposure}
                _write_store(config, inputs, part, staging, path, fingerprint, attrs, progress)
                exposure = float(BagStore.open(path).bag_weight.sum())
    store = BagStore.open(bags_path)
    return _summary(store, config, progress, open_without_counts(store, others_path))


def check(config: Config) -> list[Problem]:
    """Return all problems of the inputs; empty if ingest would succeed."""
    return check_inputs(config).problems


def check_inputs(config: Config) -> Checked:
    """Check and profile the inputs: runs the first part of ingest in a temporary directory."""
    return checked(config, _prepare)


def _prepare(
    config: Config, grid_path: Place, progress: Progress, look: Look
) -> tuple[Inputs, Bags]:
    """Check all inputs and write the aligned grid; raise InputError with all problems."""
    problems: list[Problem] = []
    inputs = open_inputs(config, problems)
    members = _members(inputs, config, problems, progress)
    bags = written = None
    layers = InputLayers(inputs.covariates, inputs.population)
    if inputs.grid is not None and (inputs.covariates or inputs.population):
        with progress.task("align", sum(1 for _ in inputs.grid.tiles(aligned_grid.TILE))) as task:
            written = write_aligned_grid(
                grid_path,
                inputs.grid,
                layers,
                members,
                everywhere=config.output.mask == "all",
                outside=counts_outside(inputs.population, inputs.grid),
                workers=n_thread(config),
                advance=task.advance,
            )
        problems.extend(written.problems)
        sound = check_ranges(config, inputs, written, members is not None, problems)
        if members is not None and inputs.areas is not None:
            bags = select_pixels(config, inputs, inputs.areas, members, written, problems, sound)
            _log_overlap(members, written, progress)
    problems.extend(look(inputs, members, written))
    if problems or bags is None or written is None or inputs.grid is None or inputs.counts is None:
        raise InputError(problems)
    for line in inputs.repairs.lines():
        progress.log(f"ingest: areas.repair: {line}")
    balance = begin_balance(
        inputs.grid,
        layers,
        written,
        inputs.counts,
        bags.left_out,
        noun=ResponseWords.of(config).area_total,  # averages are stored as totals
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
    if inputs.counts is not None and inputs.weights is not None:
        # Without a column of weights, an area that is left out has no known exposure.
        totals = inputs.counts.to_numpy(np.float64) * inputs.weights.to_numpy(np.float64)
        given += float(np.nansum(np.delete(totals, bags.area)))
    cases = {**bags.balance["cases"], "given": given}
    return {**bags.balance, "cases": cases}


def _counted(inputs: Inputs) -> np.ndarray:
    """Return which areas have a count, (n_area,) bool."""
    return np.zeros(0, bool) if inputs.counts is None else inputs.counts.notna().to_numpy()


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
    words = ResponseWords.of(config)
    _log_cut(members, titles, rows, geometry, grid, words, progress)
    check_area_balance(place, titles, areas.geometry[usable], geometry, measured, grid, problems)
    return members


def _log_cut(
    members: Membership,
    titles: np.ndarray,
    rows: np.ndarray,
    geometry: gpd.GeoSeries,
    grid: Grid,
    words: ResponseWords,
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


def _write_store(
    config: Config,
    inputs: Inputs,
    bags: Bags,
    grid_path: Place,
    bags_path: Place,
    fingerprint: str,
    attrs: dict[str, Any],
    progress: Progress,
) -> None:
    """Copy the pixels of every bag from the aligned grid to the bag store."""
    grid, areas, counts = inputs.grid, inputs.areas, inputs.counts
    if grid is None or areas is None or counts is None:
        message = "grid, areas and counts are required once the inputs are checked"
        raise RuntimeError(message)
    covariates = tuple(inputs.covariates)
    words = ResponseWords.of(config)
    n_pix = int(bags.offsets[-1])
    weights = None if inputs.weights is None else inputs.weights.to_numpy(np.float64)[bags.area]
    if weights is not None:
        attrs = {**attrs, "exposure_known": np.isfinite(weights).tolist()}
    with (
        PixelGatherer(bags, grid, grid_path, work_dir(config)) as gatherer,
        progress.task("bags", 2 * n_pix) as task,
    ):
        gatherer.spread(n_thread(config), task.advance)
        rows: Rows = gatherer.rows
        y = counts.to_numpy(np.float64)[bags.area]
        if inputs.weights is not None or config.averages:
            exposure = Exposure.of(rows, np.diff(bags.offsets), weights)
            rows = exposure.rows
            if config.averages:
                y = y * exposure.total
                bags = replace(bags, balance=_of_totals(inputs, bags, y))
        write_bags(
            bags_path,
            NewBags(
                sizes=np.diff(bags.offsets),
                rows=rows,
                y=y,
                has_responses=bool(counts.iloc[bags.area].notna().all()),
                trials=None
                if inputs.tested is None
                else inputs.tested.to_numpy(np.float64)[bags.area],
                ids=[str(i) for i in areas[AREA_ID].to_numpy()[bags.area]],
                covariates=covariates,
                units=[inputs.covariates[name].source.unit or "" for name in covariates],
                grid=grid.to_dict(),
                coords_crs=gatherer.positions.crs.to_wkt(),
                n_axis=gatherer.positions.n_axis,
                attrs={
                    "left_out": bags.left_out,
                    "balance": bags.balance,
                    **store_attrs(counts, bags, inputs.repairs),
                    **attrs,
                    "name": config.name,
                    "weight_unit": words.weight_unit,
                },
            ),
            seed=config.fit.seed,
            fingerprint=fingerprint,
            workers=n_thread(config),
            advance=task.advance,
        )


def _summary(
    store: BagStore, config: Config, progress: Progress, others: BagStore | None = None
) -> dict[str, Any]:
    left, words = store.attrs["left_out"], ResponseWords.of(config)
    reasons = {
        "no_covariate": "lack a covariate",
        "no_population": "lack population",
        "nobody": "have no people",
    }
    reasons_text = ", ".join(f"{left[key]:,} {word}" for key, word in reasons.items() if left[key])
    progress.log(
        f"ingest: {store.n_bag:,} areas, {store.n_pix:,} pixels in them"
        + (
            f"; left out {left['pixels']:,} of {left['of_pixels']:,}: {reasons_text}"
            if reasons_text
            else ""
        )
    )
    if left["weight"] > 0:
        unit = "people" if config.population is not None else "km2"
        progress.log(f"ingest: {left['weight']:,.0f} {unit} in pixels that lack a covariate")
    gaps = {name: n for name, n in left["by_covariate"].items() if n}
    if gaps:
        progress.log("ingest: missing pixels: " + ", ".join(f"{k} {n:,}" for k, n in gaps.items()))
    if left["areas"]:
        named = name_first(left["areas"], N_NAMED)
        progress.log(f"ingest: left out areas without {words.nothing}: {named}")
    balance = balance_of(store)
    if balance is not None:
        progress.log(render_balance(balance, f"{store.attrs['name']}: balance"))
    return {
        "n_areas": store.n_bag,
        "n_pixels": store.n_pix,
        "n_blocks": store.n_block,
        "covariates": list(store.covariates),
        "exposure_total": float(store.bag_weight.sum()),
        "cases_total": float(store.y.sum()),
        "left_out": left,
        "balance": balance,
        **summarise(store, others, progress),
    }
