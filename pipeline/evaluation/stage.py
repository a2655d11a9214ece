"""The evaluate stage: scores of the maps.

The stage answers three questions. Does the model fit its training areas? Does it predict held-out
areas, scattered ones and whole regions, better than a constant? If the country is simulated, does
the map agree with the truth? :mod:`pipeline.evaluation.tasks` computes the answers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from geo.sources.registry import source_of
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.model_factory import model_settings
from pipeline.config.schema import Config
from pipeline.config.size_defaults import settings
from pipeline.core.json_values import jsonable
from pipeline.evaluation.calibration_run import Calibrator
from pipeline.evaluation.calibration_summary import KEY as CALIBRATION
from pipeline.evaluation.choices import named_choices
from pipeline.evaluation.fold_fits import fit_areas, fit_fingerprint, fits_begin_warm
from pipeline.evaluation.folds import area_centres
from pipeline.evaluation.forecasts import score_forecasts, tell_forecasts
from pipeline.evaluation.held_out import HoldOut
from pipeline.evaluation.posterior import Posterior
from pipeline.evaluation.predictive_checks import predictive_checks
from pipeline.evaluation.prior_sensitivity import prior_sensitivity
from pipeline.evaluation.report import render_report
from pipeline.evaluation.tasks import evaluation_task
from pipeline.evaluation.verdict import KEY, verdict
from pipeline.prediction.support_shares import read_support
from pipeline.products.products import EVALUATION
from pipeline.storage.files import write_text
from pipeline.store.bag_store import BagStore
from pipeline.store.balance import read_balance
from pipeline.store.thinning import thinned_store
from pipeline.training.effects import input_names
from pipeline.training.modes import told_modes
from pipeline.training.series import open_map


def evaluate_stage(context: StageContext) -> dict[str, Any]:
    """Write ``evaluation.json`` and log its summary: a verdict, and tables.

    Finished folds are kept in ``work/evaluate`` until the data or the model change; an interrupted
    fit resumes from its checkpoint.

    Parameters
    ----------
    context : StageContext
        The configuration's ``output.dir`` holds ``work/`` with the bag store and the fitted model.

    Returns
    -------
    dict
        The headline numbers, and the ``settings`` that ``auto`` stands for.

    Raises
    ------
    InputError
        If the folds file or the truth cannot be used.
    """
    config, progress = context.config, context.progress
    out = Path(config.output.dir)
    work = out / "work"
    found = open_map(context, counted=True)
    config, areas, model = found.config, found.areas, found.model
    whole = areas.training
    cap, thinned = config.evaluate.area_pixels, context.place("work/thinned-evaluate.zarr")
    store = thinned_store(whole, thinned, cap, config.fit.seed)
    if store is not whole:
        store = found.numbered(store)
    evaluation = evaluation_task(config, store)
    source = None
    if config.truth is not None:
        source = source_of(config.truth.path, config.truth.choice, config.truth.header)

    with progress.task("in sample", store.n_bag) as task:
        posterior = evaluation.posterior(model, task.advance, n_thread(config))
        seen = evaluation.in_sample(model, task.advance) if posterior is None else posterior.areas
    report: dict[str, Any] = {
        KEY: None,  # the verdict comes first
        "name": config.name,
        "fingerprint": store.fingerprint,
        "model": model_settings(config, model),
        "response": config.response_kind.placeholders,
        **named_choices(model),
        **told_modes(model, config),
        "n_areas": store.n_bag,
        "n_draws": config.output.draws,
        "in_sample": evaluation.score(seen),
        "held_out": {},
    }
    if store is not whole:
        report["thinned"] = {"area_pixels": cap, "n_pixels": store.n_pix, "of": whole.n_pix}
    centres = cache(lambda: area_centres(store) if posterior is None else posterior.areas.centre.T)
    hold_out = HoldOut(
        config, store, evaluation, model, posterior, centres, work / "evaluate", progress
    )
    for scheme in config.evaluate.schemes:
        report["held_out"][scheme] = hold_out(scheme)
    if posterior is not None:
        report |= trust(config, (whole, store), model, posterior, out)
    schemes = config.evaluate.schemes or ("area", "block")
    report[KEY] = verdict(report["held_out"], schemes, config.response_kind.against)
    if source is not None:
        with progress.task("truth", store.n_bag) as task:
            # Every pixel counts alike, or by its people: not those of the sample.
            truth = evaluation_task(config, whole).truth(model, source, task.advance)
        if truth is not None:
            report["truth"] = truth
    report[CALIBRATION] = _calibration(context, config, whole, model)
    if config.series is not None:
        report["forecasts"] = score_forecasts(context, config, model.whole, progress)
    balance = read_balance(out, areas)
    if balance is not None:
        report["balance"] = balance
    report["about"] = evaluation.about
    report = jsonable(report)
    write_text(out / EVALUATION.file, json.dumps(report, indent=2, allow_nan=False) + "\n")
    progress.log(render_report(report))
    for line in tell_forecasts(report.get("forecasts") or {}):
        progress.log(line)
    return {**evaluation.headline(report), "settings": settings(config)}


def _calibration(context: StageContext, config: Config, whole: BagStore, model: Any) -> Any:
    """Refit to data simulated from the map; see :mod:`pipeline.evaluation.calibration`."""
    start = model if fits_begin_warm(config) else None
    return Calibrator(
        config,
        context,
        model,
        lambda store, client: fit_areas(config, store, client, start),
        lambda store: fit_fingerprint(config, store, start),
    ).measure(whole)


def trust(
    config: Config, stores: tuple[Any, Any], model: Any, posterior: Posterior, out: Path
) -> dict[str, Any]:
    """Return the keys of ``evaluation.json`` that ask whether to trust the map.

    Parameters
    ----------
    config : Config
    stores : tuple of BagStore
        The store that the model was fitted to, and the one of ``posterior``, which may be thinned.
    model : fitted model
    posterior : Posterior
    out : Path
        Output directory, where predict left the numbers of ``support``.

    Returns
    -------
    dict
        ``predictive_checks``, ``support`` (if the predict stage has run for this model) and
        ``prior_sensitivity``.
    """
    kind = config.response_kind
    freer = kind.freer.get(config.model.likelihood)
    checks = predictive_checks(posterior.areas, counts=kind.countable, freer=freer)
    found: dict[str, Any] = {"predictive_checks": checks}
    whole, store = stores
    support = read_support(out, whole)
    if support is not None:
        found["support"] = support
    found["prior_sensitivity"] = prior_sensitivity(
        model,
        posterior,
        list(store.ids),
        config.output.rate_per,
        input_names(model, store.covariates),
    )
    return found
