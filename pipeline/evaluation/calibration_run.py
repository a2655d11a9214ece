"""Run the simulations of a map's calibration: thinned, resumable, on threads or a cluster."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.core.errors import BagsError, NumericalError
from models.core.persist import state_arrays
from pipeline.cluster.cluster import open_cluster
from pipeline.cluster.local import n_thread
from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.config.size_defaults import CALIBRATION_PIXELS, cap_for
from pipeline.evaluation.calibration import Found, ScoredPixels, compare, finished, simulate
from pipeline.evaluation.calibration_summary import ABOUT, cautions, summarise
from pipeline.evaluation.scores import LEVELS
from pipeline.storage.mirror import keep
from pipeline.store.other_responses import OtherResponses
from pipeline.store.thinning import thinned_store

#: From a store and a cluster's client to what fits its training areas, with checkpoints there.
FitStore = Callable[[Any, Any], Callable[[np.ndarray, Path], Any]]


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
        counts = config.labels is None and config.model.response.counts
        said = {"cautions": [] if config.labels else cautions(model, whole.y, counts=counts)}
        n = config.evaluate.calibration
        reason = None
        if config.labels is not None:
            reason = "maps of rates have it, not those of labels"
        elif not isinstance(n, int):
            reason = "set evaluate.calibration to a number of simulations, such as 2"
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
            "start": config.evaluate.start,
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
        found, failed = [], []
        progress = self.context.progress
        with open_cluster(config.compute) as client, progress.task("calibration", n) as task:
            for number, path in enumerate(wanted):
                one = finished(path, self.levels)
                if one is None:
                    key = (seed, 6, number)
                    truth = simulate(self.model, store, pixels, key, n_thread(config))
                    checkpoint = directory / f"{path.stem}.checkpoint"
                    try:
                        fit = self.fit_store(OtherResponses(store, truth.y), client)
                        refit = fit(np.ones(store.n_bag, bool), checkpoint)
                    except (BagsError, NumericalError) as error:
                        failed.append(f"simulation {number + 1}: {error}")
                        progress.log(f"calibration: {failed[-1]}")
                        task.advance(1)
                        continue
                    draws = config.output.draws
                    one = compare(refit, store, pixels, truth, self.levels, draws, key)
                    one.save(path)
                    shutil.rmtree(checkpoint, ignore_errors=True)
                    keep(directory)
                found.append(one)
                task.advance(1)
        return found, failed

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
