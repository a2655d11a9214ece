"""Predict the areas that a scheme holds out, by weights or by fits, beside a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kstest

from pipeline.cluster.cluster import open_cluster
from pipeline.config.input_schema import FoldsFile
from pipeline.config.schema import Config
from pipeline.evaluation.cross_validation import cross_validate
from pipeline.evaluation.fold_fits import area_refits, fold_fits
from pipeline.evaluation.folds import (
    block_folds,
    buffered,
    random_folds,
    read_folds,
    stratified_folds,
)
from pipeline.evaluation.leave_out import (
    leave_areas_one_by_one,
    leave_areas_out,
    leave_regions_out,
)
from pipeline.evaluation.posterior import Posterior
from pipeline.evaluation.psis import trusted
from pipeline.evaluation.scores import pit_bounds
from pipeline.evaluation.tasks import EvaluationTask, compare_held_out
from pipeline.products.areas import AreaDraws
from pipeline.store.bag_store import BagStore


@dataclass(frozen=True)
class HoldOut:
    """What every scheme needs.

    Attributes
    ----------
    config : Config
        Without ``auto`` that follows the size.
    store : BagStore
    evaluation : EvaluationTask
    model : fitted model
    posterior : Posterior or None
        Its draws of the store's areas; None for labels.
    centres : callable
        Returns the centre of each area, (n_bag, n_axis), km.
    directory : Path
        Of finished folds; one a scheme in it.
    progress : Progress
    """

    config: Config
    store: BagStore
    evaluation: EvaluationTask
    model: Any
    posterior: Posterior | None
    centres: Callable[[], np.ndarray]
    directory: Path
    progress: Any

    def __call__(self, scheme: str) -> dict[str, Any]:
        """Score the model and a constant by a scheme: all folds, and each fold."""
        config = self.config
        fold = folds_of(config, self.store, scheme, self.centres)
        n_fold = int(fold.max()) + 1
        result: dict[str, Any] = {"n_folds": n_fold}
        if n_fold < 2:
            result["skipped"] = "cross-validation needs two areas or more"
            return result
        result["skipped"] = self.evaluation.unusable(fold)
        if result["skipped"]:
            self.progress.log(f"evaluate: held out by {scheme} skipped: {result['skipped']}")
            return result
        del result["skipped"]
        unseen, result["buffer_km"] = self._unseen(scheme, fold)
        with (
            open_cluster(config.compute) as client,
            self.progress.task(f"hold out by {scheme}", n_fold) as task,
        ):
            weights = self._by_weights(scheme)

            def refit(of: np.ndarray) -> Any:
                fits = fold_fits(config, self.store, client, self.model, self._areas)
                result["fits"] = fits.how
                return cross_validate(
                    of,
                    self.evaluation.predictor,
                    fits.fit,
                    self.directory / scheme,
                    fits.fingerprint,
                    task.advance,
                    unseen if scheme == "block" else None,
                    self.progress,
                    fits.at_once,
                )

            seed = config.evaluate.seed
            if not weights:
                predictions, fold_of = refit(fold)
                made = [{"how": result["fits"]} for _ in range(n_fold)]
            elif scheme == "area":
                left = leave_areas_one_by_one(self.posterior, seed)  # type: ignore[arg-type]
                predictions, fold_of, about = leave_areas_out(left, fold, refit)
                unreliable = about.pop("unreliable")
                about["unreliable"] = int(unreliable.size)
                about["unreliable_areas"] = [self.store.ids[bag] for bag in unreliable]
                result["leave_out"], made = about, [{"how": "weights"} for _ in range(n_fold)]
            else:
                predictions, fold_of, made = leave_regions_out(
                    self.posterior,  # type: ignore[arg-type]
                    fold,
                    unseen,
                    refit,
                    seed,
                )
                how = {"weights": "weights", "refit": result.get("fits", "refit")}
                made = [{**each, "how": how[each["how"]]} for each in made]
                refits = sum(each["how"] != "weights" for each in made)
                method = "importance weights of the posterior's draws, one region at a time"
                if refits == n_fold:
                    method = "a fit without each region: all rule their own weights"
                elif refits:
                    method += f"; fitted anew without {refits} of {n_fold}, which rule their own"
                result["leave_out"] = {
                    "method": method,
                    "limit": trusted(self.posterior.n_draws),  # type: ignore[union-attr]
                    "k_max": max((m["k"] for m in made if np.isfinite(m["k"])), default=None),
                    "refits": refits,
                }
        constant = self.evaluation.constant(fold, unseen)
        # The areas of a region held out whole fail together.
        groups = fold_of if scheme == "block" else None
        result |= compare_held_out(self.evaluation, predictions, constant, groups)
        if scheme == "area" and isinstance(predictions, AreaDraws):
            result["pit_p"] = pit_uniformity(predictions, seed)
        result["by_fold"] = []
        for number in range(n_fold):
            in_fold = fold_of == number
            scores = self.evaluation.fold_row(predictions.select(in_fold), constant.select(in_fold))
            n_buffer = int(unseen[number].sum() - (fold == number).sum())
            row = {"fold": number, **made[number], "n_buffer": n_buffer, **scores}
            result["by_fold"].append(row)
        return result

    @cached_property
    def _areas(self) -> Any:
        return area_refits(self.config, self.store, self.model)

    def _by_weights(self, scheme: str) -> bool:
        """Whether draws are weighed; areas are refitted by the folds of a file, if there is one.

        And where points are beside them: those of a held-out area are left out with it.
        """
        by_file = scheme == "area" and isinstance(self.config.evaluate.folds, FoldsFile)
        weights = self.config.evaluate.leave_out == "importance" and not self.config.point_sources
        return weights and not by_file and self.posterior is not None

    def _unseen(self, scheme: str, fold: np.ndarray) -> tuple[np.ndarray, float]:
        """Areas that each fold is fitted without, and the width of the buffer, km."""
        wanted = self.config.evaluate.buffer
        km = learnt_range(self.model) if wanted == "auto" else float(wanted)
        if scheme == "area" or km <= 0:
            return fold == np.arange(int(fold.max()) + 1)[:, None], 0.0
        return buffered(self.centres(), fold, km, shrink=wanted == "auto"), km


def folds_of(
    config: Config, store: Any, scheme: str, centres: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return the fold of each area of a store under a scheme, (n_bag,) int64.

    Parameters
    ----------
    config : Config
    store : BagStore
    scheme : {"area", "block"}
    centres : callable
        Returns the centre of each area, (n_bag, n_axis), km.
    """
    folds, seed = config.evaluate.folds, config.evaluate.seed
    if isinstance(folds, FoldsFile):
        given = read_folds(folds.path, folds.id, folds.fold, list(store.ids))
        if scheme == "area":
            return given
        n_fold = int(given.max()) + 1
    else:
        n_fold = folds
    if scheme == "block":
        return block_folds(centres(), n_fold)
    if config.response_kind.classes:
        return stratified_folds(store.y, n_fold, seed)
    return random_folds(store.n_bag, n_fold, seed)


def learnt_range(model: Any) -> float:
    """Return the largest learnt length-scale of space, km; 0 for a model that has none."""
    named = model.named_hyperparameters()
    found = [v for name, v in named.items() if "_space" in name and ".lengthscale" in name]
    return float(max(found, default=0.0))


def pit_uniformity(draws: AreaDraws, seed: int) -> float:
    """Return the p-value of the uniformity of randomised transforms (Kolmogorov-Smirnov).

    Parameters
    ----------
    draws : AreaDraws
        Of areas that the model did not see.
    seed : int
        Of the randomisation.
    """
    lower, upper = pit_bounds(draws.counts, draws.least, draws.most)
    at = lower + (upper - lower) * np.random.default_rng([seed, 6]).random(lower.shape)
    return float(kstest(at, "uniform").pvalue)
