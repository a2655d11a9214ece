"""What the code before the rooms wrote still opens: models, stores, checkpoints, publications.

``written_by_0.1.0.tar.xz`` was written by the last commit with flat packages: a saved model of each
class with its predictions, the checkpoint of a fit that was stopped after five of six epochs with
what the whole fit gave, and a country with its run and its publication.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import models
from models import Bags, VBAgg
from pipeline import BagStore, fit
from pipeline.cli.main import main
from tests.plain import plain
from tests.progress import Notes

MODELS = (
    *("VBAgg", "VBAgg-square", "Nystrom", "Network", "BagPixel", "Constant", "Dasymetric"),
    *("VWSGP", "VWSGPSVI", "BLRT", "PsiVGPMIL", "PsiVGPMILSVI", "GPMIL", "GPMILS"),
)

#: Predictions are the same but for rounding, which differs from processor to processor. It grows
#: with the condition of K_WW: 3.5e7 for this model of 101 inducing points, 1,700 for others.
RTOL = defaultdict(lambda: 1e-9, {"Dasymetric": 1e-6})


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_predicts_what_it_predicted(unpacked: Path, name: str) -> None:
    model = models.load(unpacked / "models" / name)
    assert type(model).__name__ == name.partition("-")[0]
    with np.load(unpacked / "bags.npz") as data, np.load(unpacked / "expected.npz") as expected:
        wanted = {key: expected[key] for key in expected if key.startswith(f"{name}/")}
        y = data["labels" if model.responses == "labels" else "counts"]
        weight, coords = data["weight"], data["coords"]
        if model.responses == "labels":
            weight = coords = None
        bags = Bags(data["x"], data["offsets"], y, weight, coords)
    assert wanted
    for key, values in wanted.items():
        _, of, what = key.split("/")
        where = {} if coords is None else {"coords": coords}
        found = (
            model.predict_pixels(bags.x, **where) if of == "pixels" else model.predict_bags(bags)
        )
        np.testing.assert_allclose(getattr(found, what), values, rtol=RTOL[name], atol=1e-12)


def test_every_class_of_model_was_written(unpacked: Path) -> None:
    classes = {name.partition("-")[0] for name in MODELS}
    assert {path.name for path in (unpacked / "models").iterdir()} == set(MODELS)
    # What has come since has nothing written before.
    assert classes <= set(models.CLASSES)


def test_the_checkpoint_of_a_fit_by_other_steps_is_left_aside(earlier: Path) -> None:
    """Fits have gone by mini-batches then: to go on by other steps would end nowhere."""
    store = BagStore.open(earlier / "country" / "out" / "work" / "bags.zarr")
    settings = {"n_inducing": 6, "kernel": "additive", "max_epochs": 6, "batch_bags": 4, "seed": 4}
    model, log = plain(VBAgg, **settings), Notes()
    fit(model, store, checkpoint=earlier / "checkpoint", n_thread=1, progress=log)
    assert not any("resumes" in line for line in log.lines)
    alone = plain(VBAgg, **settings)
    fit(alone, store, n_thread=1)
    for name, array in alone.state_.params.items():
        np.testing.assert_array_equal(model.state_.params[name], array)


@pytest.mark.ci
def test_a_publication_is_read_and_goes_on(earlier: Path, capsys: pytest.CaptureFixture) -> None:
    config = str(earlier / "country" / "disagg.yaml")
    assert main(["versions", config, "--json"]) == 0
    assert "v0001" in capsys.readouterr().out
    evaluation = earlier / "country" / "out" / "evaluation.json"
    before = json.loads(evaluation.read_text())
    # The stores that lie there, with positions in a plane, serve as they are.
    for stage in ("fit", "predict", "evaluate"):
        assert main([stage, config, "--json", "--quiet"]) == 0
    capsys.readouterr()
    store = BagStore.open(earlier / "country" / "out" / "work" / "bags.zarr")
    assert store.read_block(0).coords.shape[1] == 2
    after = json.loads(evaluation.read_text())
    assert after["n_areas"] == before["n_areas"]
    assert after["fingerprint"] == before["fingerprint"]  # of the same areas and counts
    assert np.isfinite(after["in_sample"]["nll"])
    # The code has changed since: all stages run again, and positions have three axes.
    assert main(["run", config, "--json", "--quiet"]) == 0
    stages = json.loads(capsys.readouterr().out)
    assert not any(stage["skipped"] for stage in stages["stages"])
    store = BagStore.open(earlier / "country" / "out" / "work" / "bags.zarr")
    assert store.read_block(0).coords.shape[1] == 3
    # A gate has come since, and this map of four epochs on nine areas is worse than one rate.
    assert main(["publish", config, "--quiet"]) == 3
    assert "held back: better than a constant by " in capsys.readouterr().err
    assert main(["publish", config, "--quiet", "--force"]) == 0
    capsys.readouterr()
    assert main(["versions", config, "--json"]) == 0
    known = {each["version"] for each in json.loads(capsys.readouterr().out)["versions"]}
    assert "v0001" in known
