"""A new or corrected period taken into a fitted model, without fitting it again.

The hyperparameters stay as they are; the sites of the periods that changed are found anew, and the
filter and the smoother take what they say to all others (:mod:`models.temporal.update`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import bdtr

import models
from geo.core.errors import InputError, Problem, name_first
from geo.core.suppressed import interval_text
from models.temporal.at_period import known_until
from models.temporal.periods import Period
from pipeline.cluster.local import block_device, n_thread
from pipeline.config.context import StageContext
from pipeline.config.size_defaults import settings
from pipeline.store.series_store import SeriesStore
from pipeline.training.series import as_asked, open_series, sized_series
from pipeline.training.told_model import told_model

#: Of the keys of the fit's record that an update leaves as they are.
_SETTINGS = ("model", "fit")
#: Of those that an update takes in.
_DATA = ("work/bags.zarr", "work/series.json")
#: Probability of counts as far off as those of a new period, below which a fit is proposed.
SURPRISE = 0.01
#: Draws of the hyperparameters, by their weights, below which a fit is proposed.
FEW_MEMBERS = 2.0
_FEW = "few draws of the hyperparameters suit the new counts"
SURPRISE_DRAWS = 200
#: Standard deviations, of the logarithm of a count, from which one is told that lies outside all
#: draws: a digit too many, an area taken for another.
FAR = 5.0
WITHDRAWN = "was fitted to counts of"


@dataclass(frozen=True)
class Known:
    """What a fit knew of its periods: fingerprints by label, and of what stands still."""

    standing: str
    moving: Mapping[str, str]
    responses: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Known:
        """Return what ``work/series.json`` or the record of a fit says."""
        return cls(given["standing"], given["moving"], given["responses"])

    def changed(self, now: Known) -> list[str]:
        """Return the periods with responses of which something is new."""
        return [
            label
            for label, value in now.responses.items()
            if value != self.responses.get(label) or now.moving.get(label) != self.moving.get(label)
        ]


def update_model(context: StageContext, now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Take what is new into the fitted model, and save it.

    Parameters
    ----------
    context : StageContext
        With the record of the fit.
    now : mapping
        ``work/series.json``.

    Returns
    -------
    dict or None
        The summary of the fit, with ``updated``: by period, what had been foreseen of its counts;
        ``far`` and ``off``: by period, of this and earlier updates, until they are corrected, the
        counts far from what was foreseen, and the probability of counts that were off together;
        ``refit``: why a new fit is proposed, empty if it is not. None where a new fit is due, and
        the context leaves it the choice.

    Raises
    ------
    InputError
        If there is no fit, or it is of other areas, layers, periods or settings, and the context
        leaves no choice.
    """
    config, progress = context.config, context.progress
    before = dict(context.record.get("fit", {}).get("summary", {}))
    other = _other_fit(context, before, now)
    if other and context.update == "only":
        again = f"run `disagg run {config.source or 'CONFIG'}`, which fits it anew"
        if other.startswith(
            WITHDRAWN
        ):  # a table of the new month alone would be the end of the others
            again = "put them back, since the table has the counts of all periods; or " + again
        raise InputError(Problem(str(config.output.dir / "work" / "model"), other, again))
    if other:
        progress.log(f"update: a new fit: the last one {other}")
        return None
    store = open_series(context)
    sized_to = sized_series(config, store)
    path = Path(config.output.dir) / "work" / "model"
    model: Any = models.load(path)
    labels = Known.of(before["series"]).changed(Known.of(now))
    summary = {**before, "series": dict(now), "settings": settings(sized_to), "updated": {}}
    proposed = before.get("refit", "")
    if proposed and context.update == "first":
        progress.log(f"update: a new fit, proposed by an earlier update: {proposed}")
        return None
    if not labels:
        progress.log("update: no period is new or corrected")
        return summary
    place, cap = context.place("work/thinned-fit.zarr"), sized_to.fit.area_pixels
    stores = store.thinned(place, cap, config.fit.seed)
    source = store.source(stores)
    periods, told = [], {}
    far, off = dict(before.get("far", {})), dict(before.get("off", {}))
    for label in labels:
        number = store.periods.index(label)
        bags = source.of_period(number)
        assert bags is not None
        known = before["series"]["responses"].get(label)
        if known is None or known != now["responses"][label]:
            told[label], far[label] = _foreseen(
                context, model, store, number, corrected=known is not None
            )
            was_off = off.pop(label, None) is not None
            p = told[label].get("p", 1.0)
            if p < SURPRISE and (known is None or was_off):
                off[label] = p
        if known is not None:
            told[label] = {"corrected": True}
        periods.append(Period(store.times[number], bags, bags.bag))
    device = block_device(config).get("device", "cpu")
    with progress.task("update", None):
        model = model.with_periods(*periods, n_thread=n_thread(config), device=device)
    why = _refit(off, model) or _of_before(before)
    if why and context.update == "first":
        progress.log(f"update: a new fit: {why}")
        return None
    model.save(path)
    progress.log(f"update: {name_first(labels, 12)} taken in")
    for label, row in told.items():
        if "covered" in row:
            progress.log(
                f"update: {label}: {row['covered']} of {row['n_areas']} new counts are inside the "
                f"{100 * config.output.interval:g} % interval that the model foresees without them"
            )
        elif "corrected" in row:
            same = before["series"]["responses"][label] == now["responses"][label]
            what = "layers" if same else "counts"
            progress.log(f"update: {label} had been taken in before: its {what} have changed")
        for text in far.get(label, []):
            progress.log(f"update: warning: {label}: {text}: look at this count")
    known, counted = (each.get("counts", {}) for each in (before["series"], now))
    for label in labels:
        gone = known.get(label, 0) - counted.get(label, 0)
        if gone > 0:
            progress.log(
                f"update: warning: {label} had {known[label]:,} responses and has {gone:,} fewer: "
                "these areas are estimated now; a file of corrections has to have all rows"
            )
    if why:
        again = f"disagg update {config.source or 'CONFIG'} --refit"
        progress.log(f"update: warning: {why}; fit again: `{again}`")
    last = next(each for each in reversed(stores) if each.in_training.any())
    about = told_model(model, last, store.ids, sized_to)
    far = {label: texts for label, texts in far.items() if texts}
    return {**summary, **about, "updated": told, "far": far, "off": off, "refit": why}


def _other_fit(context: StageContext, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return why the fit of a summary cannot be updated; empty if it can be."""
    if "series" not in before:
        return "is no fit of several periods"
    then = context.record["fit"]["inputs"]
    # Other code makes another fit. Who asks for an update alone has chosen to keep the old one.
    kept = _SETTINGS if context.update == "only" else {*then, *context.inputs} - {*_DATA}
    other = sorted(key for key in kept if then.get(key) != context.inputs.get(key))
    settings = [key for key in other if key in _SETTINGS]
    if settings:
        return f"was fitted with another section {' and '.join(settings)} of the configuration"
    if other:
        return f"was fitted by other code ({name_first(other)})"
    if before["series"]["standing"] != now["standing"]:
        data = before["series"].get("standing_data")
        if data is not None and data == now.get("standing_data"):
            return "was fitted to areas and layers as another version of the code had read them"
        return "was fitted to other areas, or other layers that stand still"
    gone = [label for label in before["series"]["responses"] if label not in now["responses"]]
    if gone:
        return f"{WITHDRAWN} {name_first(gone, 12)}, which this run does not have"
    return ""


def _foreseen(
    context: StageContext, model: Any, store: SeriesStore, number: int, *, corrected: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return how the counts of a period compare to what was foreseen, and which are far off.

    Those of a corrected one are foreseen from the periods before: the model knows its old counts.
    """
    config, time = context.config, store.times[number]
    own = store.at(store.periods[number]).training
    nothing_before = corrected and time <= model.posterior_.times[0]
    if not own.n_bag or nothing_before:  # without areas all counts are of several together
        return {}, []
    if corrected:
        model = known_until(model, store.times[number - 1])
    rng, at = np.random.default_rng([config.fit.seed, 7]), model.at(time)
    areas = as_asked(own, store.ids, at)
    functions = at.sample_functions(SURPRISE_DRAWS, rng)
    counts = [at.predict_bags(b, draws=functions).observed(rng).draws for b in areas.blocks()]
    drawn = np.concatenate(counts, axis=1)
    half = np.zeros(areas.n_bag) if areas.margin is None else areas.margin
    least, most = areas.y - half, areas.y + half
    tails = [(1 - config.output.interval) / 2, (1 + config.output.interval) / 2]
    lower, upper = np.quantile(drawn, tails, axis=0)
    inside, n = int(((lower <= most) & (least <= upper)).sum()), areas.n_bag
    nearest = np.clip(drawn.mean(axis=0), least, most)  # of what a suppressed count may be
    found = {
        "n_areas": n,
        "covered": inside,
        "p": float(bdtr(inside, n, config.output.interval)),
        "foreseen": float(drawn.sum(axis=1).mean()),
        "observed": float(areas.y.sum()),
    }
    given = [
        interval_text(low, high) if low < high else _number(low)
        for low, high in zip(least, most, strict=True)
    ]
    return found, _far(areas.ids, given, nearest, drawn, counts=config.response_kind.countable)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _far(
    ids: Sequence[str], given: Sequence[str], y: np.ndarray, drawn: np.ndarray, *, counts: bool
) -> list[str]:
    """Name the areas whose response lies far outside all draws, the farthest first.

    Parameters
    ----------
    ids, given : sequence of str
        Areas, and their responses as the table has them.
    y : (n_area,) float64
    drawn : (n_draws, n_area) float64
        Responses that are foreseen.
    counts : bool
        Deviations are of logarithms, and not below what chance alone makes of a count.
    """
    scale = np.log1p if counts else np.asarray
    draws = scale(drawn)
    least = 1.0 / np.sqrt(1.0 + drawn.mean(axis=0)) if counts else 1e-9
    off = np.abs(scale(y) - draws.mean(axis=0)) / np.maximum(draws.std(axis=0), least)
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    far = np.flatnonzero((off > FAR) & ((y < low) | (y > high)))
    return [
        f"{ids[k]} has {given[k]}, where {_number(low[k])} to {_number(high[k])} were foreseen"
        for k in far[np.argsort(-off[far], kind="stable")]
    ]


def _refit(off: Mapping[str, float], model: Any) -> str:
    """Return why a new fit is proposed; empty if it is not."""
    if off:
        return f"the counts of {name_first(list(off))} are further off than the fit foresaw"
    weight = model.posterior_.weight
    left = float(weight.sum() ** 2 / (weight**2).sum())
    if weight.size > 2 * FEW_MEMBERS and left < FEW_MEMBERS:
        return f"{_FEW} ({left:.1f} of {weight.size})"
    return ""


def _of_before(summary: Mapping[str, Any]) -> str:
    """Return why an update proposed a fit before its periods were kept; empty elsewhere.

    Draws are as many as the weights of now say: a count that is put right gives them back.
    """
    why = str(summary.get("refit", ""))
    return "" if summary.get("off") or why.startswith(_FEW) else why
