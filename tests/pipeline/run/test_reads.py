"""What a run hashes, and what each stage opens: each once, and just what it declares."""

from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

from pipeline.config.context import StageContext
from pipeline.config.schema import Config
from pipeline.core.progress import Silent
from pipeline.run.runner import run_stages, stale_stages
from pipeline.run.stages import STAGES
from pipeline.storage import fingerprint
from tests.pipeline.run.conftest import NAMES, build_config
from tests.pipeline.storage.watching import opened


@contextmanager
def hashed(monkeypatch):
    """Count how often each file is fed to a fingerprint."""
    count, feed = Counter(), fingerprint._feed

    def counted(digest, path, name):
        count[path.name if path.name != "zarr.json" else f"{path.parent.name}/zarr.json"] += 1
        feed(digest, path, name)

    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_feed", counted)
        yield count


def test_a_run_hashes_each_input_once_and_each_output_once(inputs, calls, monkeypatch):
    config = build_config(inputs)
    given = {path.name for path in inputs.iterdir() if path.is_file()}
    left = {"bags.zarr/zarr.json", "grid.zarr/zarr.json", "m.json", "rate_mean.tif", "areas.csv"}
    everything = dict.fromkeys(given | left | {"evaluation.json", "report.html"}, 1)
    with hashed(monkeypatch) as count:
        run_stages(config, NAMES, Silent())
    assert count == everything
    with hashed(monkeypatch) as count:  # a run that finds all up to date looks at each once
        run_stages(config, NAMES, Silent())
    assert count == everything
    with hashed(monkeypatch) as count:
        stale_stages(config, "predict")
    assert set(count.values()) == {1}


@contextmanager
def opened_keys(paths):
    """Yield a set that has, once the context ends, the keys of what was opened within it."""
    keys, found = {}, set()
    for key, path in paths.items():
        inside = [path, *(p for p in path.rglob("*") if p.is_dir())] if path.is_dir() else [path]
        for each in inside:
            keys.setdefault(each, set()).add(key)  # grid.like is another key's file
    with opened(keys) as events:
        yield found
    for path, _, _ in events:
        found |= keys[path]


@pytest.mark.ci
def test_each_stage_opens_what_it_declares_and_nothing_else(files):
    rows = [f"{area},{k % 3}" for k, area in enumerate(files.cases)]
    (files.directory / "folds.csv").write_text("\n".join(["code,fold", *rows]) + "\n")
    files.raster("truth.tif", np.full(files.shape, 0.02))
    files.options = {
        "model": {"inducing": 8},
        "fit": {"max_epochs": 2, "seed": 4},
        "output": {"dir": str(files.directory / "out"), "draws": 10},
        "evaluate": {
            "folds": {"path": "folds.csv", "id": "code", "fold": "fold"},
            "schemes": ["area"],
        },
        "truth": {"path": "truth.tif"},
    }
    config = Config.model_validate(files.mapping(), context={"base": files.directory})
    given = {key: files.directory / path for key, path in config.input_paths().items()}
    out = config.output.dir
    for stage in STAGES.values():
        needed = {need: out / need for need in stage.needs}
        others = {
            output: out / output
            for other in STAGES.values()
            for output in other.outputs
            if other.name != stage.name and "*" not in output and (out / output).exists()
        }
        with opened_keys({**given, **needed, **others}) as found:
            stage.load()(StageContext(config))
        declared = {key for key in given if key.split(".")[0] in stage.files}
        same = {str(given[key]) for key in declared}  # grid.like: the population
        also = {key for key, path in given.items() if str(path) in same}
        # Every area has a count: there is no store of others.
        read = [name for name in stage.reads if "*" not in name]
        maybe = {name for name in (*stage.may_need, *read) if (out / name).exists()}
        assert found - also == {*stage.needs, *maybe}, stage.name
        # The people beyond the map are asked for where areas of a level reach there.
        idle = {key for key in declared if key.startswith("population")}
        assert declared - (idle if stage.name == "predict" else set()) <= found, stage.name
