"""Run the simulations of a map's calibration: thinned, resumable, on threads or a cluster."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models.core.errors import BagsError, NumericalError
from models.core.persist import state_arrays
from pipeline.cluster.cluster import open_cluster
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.no_spread import spread_caution
from pipeline.config.schema import Config
from pipeline.config.size_defaults import CALIBRATION_PIXELS, cap_for
from pipeline.core.processes import in_processes
from pipeline.core.progress import Progress
from pipeline.evaluation.calibration import Found, ScoredPixels, compare, finished, simulate
from pipeline.evaluation.calibration_summary import ABOUT, cautions, summarise
from pipeline.evaluation.fold_fits import fits_at_once, fits_begin_warm
from pipeline.evaluation.scores import LEVELS
from pipeline.storage.mirror import keep
from pipeline.store.thinning import thinned_store

#: From a store and a cluster's client to what fits its training areas, with checkpoints there.
FitStore = Callable[[Any, Any], Callable[[np.ndarray, Path, Progress], Any]]


@dataclass(frozen=True)
class Calibrator:
    """The simulations of one map.

    Attributes
    ----------
    config : Config
        Sized.
    context : StageContext
    model : fitted model
    fit_store : callable
        Fits a new model to a store, with the settings of the folds' fits.
    fingerprint : callable
        From a store to the fingerprint of its data and of the fit's settings.
    """

    config: Config
    context: StageContext
    model: Any
    fit_store: FitStore
    fingerprint: Callable[[Any], str]

    @property
    def levels(self) -> list[float]:
        """Central probabilities of the intervals, ascending."""
        return sorted({*LEVELS, self.config.output.interval})

    def measure(self, whole: Any) -> dict[str, Any]:
        """Simulate, refit and score.

        Finished simulations are kept in ``work/evaluate/calibration``; those of other data, maps
        or settings are removed.

        Parameters
        ----------
        whole : BagStore
            With every pixel.

        Returns
        -------
        dict
            As of :func:`pipeline.evaluation.calibration_summary.summarise`, and how it was done;
            ``skipped``, the reason, if there is nothing; ``cautions`` in any case.
        """
        config, model = self.config, self.model
        if not config.response_kind.drawn:
            why = f"maps of rates have it, not those of {config.response_kind.totals}"
            return {"skipped": why, "cautions": []}
        unsure = spread_caution(config)  # what the others say is of intervals
        said = {
            "cautions": [unsure]
            if unsure
            else cautions(model, whole.y, counts=config.response_kind.countable)
        }
        n = config.evaluate.calibration
        reason = None
        if not isinstance(n, int):
            reason = "set evaluate.calibration to a number of simulations, such as 2"
        elif config.point_sources:
            reason = "it simulates counts of areas, and this map has points beside them"
        elif not (hasattr(model, "sample_functions") and "pixels" in model.predicts):
            reason = f"model.kind: {config.model.kind} draws no surfaces"
        if reason is not None:
            return {"skipped": reason, **said}
        assert isinstance(n, int)
        store = self._store(whole)
        found, failed = self._simulations(whole, store, n)
        done = {
            "n_simulations": len(found),
            "interval": config.output.interval,
            "failed": failed,
            "start": "warm" if fits_begin_warm(config) else "cold",
            "n_pixels": store.n_pix,
            "of": whole.n_pix,
        }
        if not found:
            return {"skipped": f"no refit succeeded: {failed[0]}", **done, **said}
        return {**summarise(found, whole.n_bag), **done, **said, "about": ABOUT}

    def _store(self, whole: Any) -> Any:
        """Return the areas as the refits read them: about ``CALIBRATION_PIXELS`` of them."""
        limit = self.config.evaluate.area_pixels
        cap = cap_for(whole.sizes, CALIBRATION_PIXELS)
        cap = min(cap, limit) if isinstance(limit, int) else cap
        place = self.context.place("work/thinned-calibration.zarr")
        return thinned_store(whole, place, cap, self.config.fit.seed)

    def _simulations(self, whole: Any, store: Any, n: int) -> tuple[list[Found], list[str]]:
        config, seed = self.config, self.config.evaluate.seed
        directory = Path(config.output.dir) / "work" / "evaluate" / "calibration"
        directory.mkdir(parents=True, exist_ok=True)
        wanted = [directory / f"sim-{number}-{self._key(store, number)}.npz" for number in range(n)]
        _remove_others(directory, wanted)
        pixels = ScoredPixels.of(whole, seed)
        kept = {path: finished(path, self.levels) for path in wanted}
        missing = [number for number, path in enumerate(wanted) if kept[path] is None]
        progress, failed = self.context.progress, []
        with open_cluster(config.compute) as client, progress.task("calibration", n) as task:
            task.advance(n - len(missing))
            made = in_processes(
                [partial(self._refit, store, client, pixels, k, wanted[k]) for k in missing],
                fits_at_once(config, store, client),
                progress,
            )
            for number, why in zip(missing, made, strict=True):
                if why is None:
                    kept[wanted[number]] = finished(wanted[number], self.levels)
                    shutil.rmtree(wanted[number].with_suffix(".checkpoint"), ignore_errors=True)
                    keep(directory)
                else:
                    failed.append(f"simulation {number + 1}: {why}")
                    progress.log(f"calibration: {failed[-1]}")
                task.advance(1)
        return [one for one in kept.values() if one is not None], failed

    def _refit(
        self, store: Any, client: Any, pixels: ScoredPixels, number: int, path: Path, told: Progress
    ) -> str | None:
        """Simulate, fit and save what is scored; return why there is none."""
        config = self.config
        key = (config.evaluate.seed, 6, number)
        truth = simulate(self.model, store, pixels, key, n_thread(config))
        try:
            fit = self.fit_store(store.with_responses(truth.y), client)
            refit = fit(np.ones(store.n_bag, bool), path.with_suffix(".checkpoint"), told)
        except (BagsError, NumericalError) as error:
            return str(error)
        compare(refit, store, pixels, truth, self.levels, config.output.draws, key).save(path)
        return None

    def _key(self, store: Any, number: int) -> str:
        digest = hashlib.sha256(self.fingerprint(store).encode())
        for name, value in sorted(state_arrays(self.model.fitted_state()).items()):
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
        own = [number, self.config.evaluate.seed, self.config.output.draws, self.levels]
        digest.update(json.dumps(own).encode())
        return digest.hexdigest()[:16]


def _remove_others(directory: Path, wanted: list[Path]) -> None:
    for old in directory.iterdir():
        if old.with_suffix(".npz") in wanted:
            continue
        if old.suffix == ".checkpoint":
            shutil.rmtree(old)
        elif old.suffix in {".npz", ".partial"}:
            old.unlink()
