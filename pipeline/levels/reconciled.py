"""Maps and tables whose totals are the reported or given ones: ``output.reconcile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from geo.core.errors import name_first
from pipeline.config.level_schema import COUNTS, Reconcile
from pipeline.core.progress import Progress
from pipeline.levels.area_sums import AreaSums, LevelDraws
from pipeline.levels.kept_totals import kept_totals, not_kept, tag_text
from pipeline.levels.level_tables import Observed, Summary
from pipeline.levels.reconcile import EQUAL, LEAST, Raked, Tier, mean_totals, rake
from pipeline.levels.scaled_pixels import ENDS, KeptRates, ScaledPixels
from pipeline.products.area_factors import TileFactors
from pipeline.products.layer_files import LayerFiles, open_layers
from pipeline.products.level_products import RECONCILED
from pipeline.products.map_result import MapResult
from pipeline.products.products import layers
from pipeline.products.tile_pass import Consumer, Draws, run_pass
from pipeline.products.tile_pixels import TilePixels, TileReader
from pipeline.store.level_areas import Level, Overlaps, nested_order

N_NAMED = 5  # conflicts, or areas, that are named
SHORT = 1e-3  # miss of a total on the raster that a line tells: relative, and in cases


@dataclass(frozen=True)
class Nodes:
    """The factors of all parts of the raked areas, by number of area in the reader.

    Attributes
    ----------
    parent : (n_area,) int64
        Area above, -1 for none.
    raked : (n_area,) bool
        Whether the area's level is raked.
    has_rest : (n_area,) bool
        Whether a part of it lies in no area below.
    finest : (n_area,) bool
        Whether its level has no raked level below.
    factor : (n_draws, n_area) float64
        Of that part, or of the whole area where nothing is below.
    """

    parent: np.ndarray
    raked: np.ndarray
    has_rest: np.ndarray
    finest: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(cls, raked: Raked, reader: TileReader) -> Nodes:
        """Return the nodes of all tiers."""
        starts = dict(zip((lv.name for lv in reader.levels), reader.starts, strict=False))
        n_draws = raked.tiers[0].drawn.shape[0]
        parent = np.full(reader.n_area, -1, np.int64)
        chosen, rest = np.zeros(reader.n_area, bool), np.zeros(reader.n_area, bool)
        finest = np.zeros(reader.n_area, bool)
        factor = np.ones((n_draws, reader.n_area))
        for number, tier in enumerate(raked.tiers):
            at = slice(int(starts[tier.level.name]), int(starts[tier.level.name]) + len(tier.level))
            chosen[at], factor[:, at] = True, tier.factor
            rest[at] = (tier.rest > 0).any(axis=0)
            finest[at] = number == len(raked.tiers) - 1
            if number:
                above = int(starts[raked.tiers[number - 1].level.name])
                parent[at] = np.where(tier.parent >= 0, above + tier.parent, -1)
        return cls(parent, chosen, rest, finest, factor)

    def of_pixels(
        self, pixels: TilePixels, part: slice, of_counts: TileFactors | None = None
    ) -> np.ndarray:
        """Return the factor of each pixel, (n_draws, n_part): that of its parts, by their shares.

        What training areas cover and no raked area does keeps its rate. ``of_counts`` is what the
        totals that were scaled had from the counts of training areas: each part has its own.
        """
        keep = np.flatnonzero(self.raked[pixels.area])
        area = pixels.area[keep]
        share = pixels.fraction[keep][:, part].toarray()
        local = {int(number): k for k, number in enumerate(area)}
        own = share.copy()
        for k, number in enumerate(area):
            above = local.get(int(self.parent[number]))
            if above is not None:
                own[above] -= share[k]
        own = np.where(self.has_rest[area][:, None], np.maximum(own, 0.0), 0.0)
        # The map of cases is of people inside training areas: parts outside have no say there.
        covered, fine = pixels.covered[part], self.finest[area]
        rest = own[~fine].sum(axis=0)
        room = np.maximum(np.where(covered > 0, covered, 1.0) - own[fine].sum(axis=0), 0.0)
        own[~fine] *= np.minimum(1.0, room / np.where(rest > 0, rest, 1.0))
        total = own.sum(axis=0)
        plain = np.maximum(covered - total, 0.0)
        plain = np.where(total + plain > 0, plain, 1.0)
        # (n_draws, n_local) @ (n_local, n_part)
        if of_counts is None:
            return (self.factor[:, area] @ own + plain) / (total + plain)
        training = area < of_counts.drawn.shape[1]
        known, others = area[training], area[~training]
        summed = (self.factor[:, known] * of_counts.drawn[:, known]) @ own[training]
        summed += (self.factor[:, others] @ own[~training] + plain) * of_counts(pixels, part)
        return np.asarray(summed / (total + plain))


def totals_of(spec: Reconcile, level: Level, observed: Mapping[str, Observed]) -> np.ndarray:
    """Return the totals that a level is scaled to, (n_area,), NaN where there is none."""
    if spec.to == COUNTS:
        return observed[level.name].cases
    return np.full(len(level), np.nan) if level.targets is None else level.targets


def rake_levels(
    spec: Reconcile,
    reader: TileReader,
    draws: LevelDraws,
    observed: Mapping[str, Observed],
) -> Raked:
    """Scale the draws of the areas to the totals of a configuration.

    Raises
    ------
    InputError
        If levels to reconcile do not nest.
    """
    places = {level.name: (level, n) for n, level in enumerate(reader.levels)}
    tiers, people = [], []
    for level, parent in nested_order([places[name][0] for name in spec.levels]):
        number = places[level.name][1]
        at = slice(int(reader.starts[number]), int(reader.starts[number + 1]))
        target = totals_of(spec, level, observed)
        rank = spec.levels.index(level.name)
        tiers.append(Tier(level, draws.cases_drawn[:, at], target, parent, rank))
        people.append(draws.people[at])
    return rake(tiers, people)


class _ScaledMaps(Consumer):
    """Writes the fitted pixels, and sums their means over areas."""

    def __init__(self, held: ScaledPixels, files: LayerFiles, n_area: int) -> None:
        self._held, self._files, self.total = held, files, np.zeros(n_area)

    def begin(self, pixels: TilePixels) -> np.ndarray:
        return self._held.read(pixels)

    def add(self, pixels: TilePixels, found: np.ndarray) -> None:
        self._files.write(pixels, dict(zip(ENDS, found, strict=True)))
        self.total[pixels.area] += pixels.fraction @ (pixels.people * found[0])


def reconcile(
    made: MapResult,
    kept: KeptRates,
    draws: LevelDraws,
    observed: Mapping[str, Observed],
    summary: Summary,
    progress: Progress,
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Write the reconciled rasters.

    Parameters
    ----------
    made : MapResult
    kept : KeptRates
        Says which pixels are mapped.
    draws : LevelDraws
        The plain ones.
    observed : mapping of str to Observed
        By level.
    summary : Summary
    progress : Progress

    Returns
    -------
    columns : dict of DataFrame
        Reconciled columns of the table of each level.
    report : dict
        ``to``, ``levels``; ``kept``, by level how many totals hold, and how many were given;
        ``not_kept``, which do not and why, as texts; ``factors``: the least, largest and middle
        factor by raked level; ``conflicts``, as texts; ``miss``, the largest relative distance of
        a drawn total from the one that it was scaled to.
    """
    spec, reader = made.config.output.reconcile, made.reader
    if spec is None:
        return {}, {}
    raked = rake_levels(spec, reader, draws, observed)
    nodes = Nodes.of(raked, reader)
    of_counts = made.tile_factors

    def factors(pixels: TilePixels, part: slice) -> np.ndarray:
        return nodes.of_pixels(pixels, part, of_counts)

    wanted = [
        layer for layer in layers(made.config, from_draws=True) if layer.product in RECONCILED
    ]
    kept_of = kept_totals(raked.tiers, spec.levels)
    tags = {**made.tags, "reconciled": tag_text(spec.to, kept_of)}
    aimed = nodes.raked & (nodes.finest | nodes.has_rest)
    held = ScaledPixels(reader.grid, made.directory, aimed, summary)
    sums = AreaSums(reader, made.functions.n_draws)
    with progress.task("reconcile", len(reader.tiles)) as task:
        # Totals are known once all tiles are: scaled draws take a second pass.
        run_pass(
            reader,
            [sums, held],
            draws=Draws(made.functions, factors),
            known=kept.known,
            advance=task.advance,
            n_thread=made.n_thread,
        )
    scaled = sums.result
    places = {level.name: at for level, at in reader.numbered()}
    plain = [draws.cases[places[tier.level.name]] for tier in raked.tiers]
    totals = np.zeros(reader.n_area)
    for tier, mean in zip(raked.tiers, mean_totals(raked.tiers, plain), strict=True):
        totals[places[tier.level.name]] = mean
    fitted = held.fit(totals)
    off = aimed & misses(fitted, totals)
    if off.any():
        titles = np.concatenate([level.titles for level in reader.levels])
        progress.log(
            "predict: warning: output.reconcile: cases_reconciled_mean.tif sums to another total "
            f"than the tables in {name_first(list(titles[off]), N_NAMED)}: too few pixels "
            "lie there, or other areas share them; a finer grid helps"
        )
    with open_layers(wanted, reader.grid, made.directory, tags) as files:
        maps = _ScaledMaps(held, files, reader.n_area)
        run_pass(reader, [maps], known=kept.known, n_thread=made.n_thread)
    means = maps.total.copy()
    for tier in raked.tiers:
        at = places[tier.level.name]
        means[at] = totals[at]
    columns = _columns(raked, reader, draws, scaled, means, summary)
    return columns, _report(made, spec, raked, columns, progress)


def misses(fitted: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return where sums of the raster are not the totals; of 0 no pixel has exactly none."""
    return np.asarray(np.abs(fitted - totals) > SHORT * np.maximum(totals, 1.0))


def _columns(
    raked: Raked,
    reader: TileReader,
    draws: LevelDraws,
    scaled: LevelDraws,
    means: np.ndarray,
    summary: Summary,
) -> dict[str, pd.DataFrame]:
    """Return the reconciled columns of each level, whose mean cases are given, (n_area,)."""
    tiers = {tier.level.name: tier for tier in raked.tiers}
    finest = raked.tiers[-1]
    result = {}
    for level, at in reader.numbered():
        plain, target = draws.cases_drawn[:, at], np.full(len(level), np.nan)
        factor, mean = np.full(plain.shape, np.nan), means[at]
        if level.name in tiers:
            total, target = tiers[level.name].total, tiers[level.name].target
        else:
            # Areas inside one raked area take its factor, so that they add up to it; others are
            # sums of the scaled pixels.
            parent = Overlaps.of(level, finest.level).parent(len(level))
            total = scaled.cases_drawn[:, at].copy()
            within = parent >= 0
            total[:, within] = plain[:, within] * finest.factor[:, parent[within]]
        np.divide(total, plain, out=factor, where=plain > LEAST)
        if level.name not in tiers:
            # Their means are those of the raster, so that zonal sums agree. Draws that no total
            # changed have the mean of the map, but for their Monte Carlo error.
            kept = (np.abs(factor - 1.0) <= EQUAL).all(axis=0)
            drawn = np.where(kept, draws.cases[at], total.mean(axis=0))
            total = total * np.divide(mean, drawn, out=np.ones_like(mean), where=drawn > LEAST)
        people = draws.people[at]
        blank = np.where(people > 0, 1.0, np.nan)
        per_person = blank * summary.rate_per / np.where(people > 0, people, 1.0)
        found: dict[str, Any] = {"target_total": target}
        for name, per in (("cases", blank), ("rate", per_person)):
            found |= summary.columns(f"reconciled_{name}", mean * per, total * per)
        found |= summary.columns("reconciled_factor", factor.mean(axis=0), factor)
        result[level.name] = pd.DataFrame(found)
    return result


def _log_unscaled(tier: Tier, factor: np.ndarray, to: str, progress: Progress) -> None:
    """Name the areas whose factor is 0, or that have draws without cases to scale."""
    titles, level = tier.level.titles, tier.level.name
    none = np.flatnonzero(factor == 0)
    if none.size:
        progress.log(
            f"predict: warning: output.reconcile: {none.size:,} of {len(titles):,} areas of the "
            f"level {level} have no cases on the reconciled maps: their total in {to} is 0, or all "
            "of that of the area around them is in others: "
            f"{name_first(list(titles[none]), N_NAMED)}; leave a total empty that is not "
            "known"
        )
    target = np.where(np.isfinite(tier.target), tier.target, 0.0)
    empty = ((tier.total <= LEAST) & (target > 0)).mean(axis=0)
    short = np.flatnonzero(empty > 0)
    if short.size:
        each = [f"{titles[k]} ({100 * empty[k]:.0f} % of the draws)" for k in short]
        progress.log(
            f"predict: warning: output.reconcile: areas of the level {level} fall short of their "
            f"totals, for draws of the map have no cases there to scale: "
            f"{name_first(each, N_NAMED)}"
        )


def _report(
    made: MapResult,
    spec: Reconcile,
    raked: Raked,
    columns: dict[str, pd.DataFrame],
    progress: Progress,
) -> dict[str, Any]:
    """Log and return the effect of the totals."""
    words, period = made.config.response_kind, made.config.period
    of = f" of {period}" if made.config.series is not None else ""
    factors: dict[str, dict[str, Any]] = {}
    miss = 0.0
    for tier in raked.tiers:
        own = columns[tier.level.name]["reconciled_factor"].to_numpy()
        _log_unscaled(tier, own, spec.to, progress)
        known = np.flatnonzero(np.isfinite(own) & (own > 0))
        if known.size:
            titles = tier.level.titles
            low, high = known[own[known].argmin()], known[own[known].argmax()]
            factors[tier.level.name] = {
                "least": [titles[low], float(own[low])],
                "largest": [titles[high], float(own[high])],
                "middle": float(np.median(own[known])),
            }
        given = np.isfinite(tier.target) & (tier.target > 0)
        if given.any():
            off = np.abs(tier.total[:, given] / tier.target[given] - 1.0)
            miss = max(miss, float(off.max()))
    for name, each in factors.items():
        progress.log(
            f"predict: reconciled to {spec.to}{of}: {words.total} of the level {name} change by "
            f"factors of {each['least'][1]:.3g} in {each['least'][0]} to "
            f"{each['largest'][1]:.3g} in {each['largest'][0]}, half of them below "
            f"{each['middle']:.3g}"
        )
    unkept = list(not_kept(raked.tiers, f"{spec.to}{of}"))
    for text in unkept:
        progress.log(f"predict: warning: output.reconcile: {text}")
    for conflict in raked.conflicts[:N_NAMED]:
        progress.log(f"predict: warning: totals{of} contradict: {conflict}")
    if len(raked.conflicts) > N_NAMED:
        progress.log(f"predict: warning: {len(raked.conflicts):,} totals{of} contradict in all")
    return {
        "to": spec.to,
        "levels": list(spec.levels),
        "kept": kept_totals(raked.tiers, spec.levels),
        "not_kept": unkept,
        "factors": factors,
        "conflicts": [str(conflict) for conflict in raked.conflicts],
        "miss": miss,
    }
