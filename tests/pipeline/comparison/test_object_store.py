"""Runs whose results are on an object store are compared as those on disk are."""

import json
import shutil

import pytest
import yaml

from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.publishing.publish import publish
from pipeline.run.runner import run_stages
from tests.pipeline.comparison.conftest import STAGES


def on_store(runs, directory, name, endpoint, bucket, scratch, **sections):
    """Write the configuration of a run with its results on a bucket; inputs stay on disk."""
    mapping = yaml.safe_load((runs / f"{name}.yaml").read_text())
    mapping["output"]["dir"] = f"s3://{bucket}/{name}"
    mapping["storage"] = {
        "endpoint": endpoint, "retries": 4, "timeout": 10, "scratch": str(scratch),
    }  # fmt: skip
    mapping |= sections
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


@pytest.mark.ci
def test_another_machine_compares_the_runs_and_versions_of_a_bucket(
    runs, s3, bucket, tmp_path, capsys
):
    inputs = tmp_path / "in"
    shutil.copytree(runs, inputs, ignore=shutil.ignore_patterns("out-*"))
    stages = (*STAGES, "evaluate")
    to = {"publish": {"dir": str(tmp_path / "maps")}}
    path = on_store(runs, inputs, "a", s3, bucket, tmp_path / "first", **to)
    config = load_config(path)
    run_stages(config, stages, Silent())
    there = on_store(runs, inputs, "a", s3, bucket, tmp_path / "second", **to)
    out, local, b = tmp_path / "change", tmp_path / "local", str(runs / "b.yaml")
    assert main(["compare", str(there), b, "--out", str(out)]) == 0
    assert "draws are paired" in capsys.readouterr().err
    # Second route: the runs on disk.
    assert main(["compare", str(runs / "a.yaml"), b, "--out", str(local)]) == 0
    capsys.readouterr()
    assert (out / "change.csv").read_bytes() == (local / "change.csv").read_bytes()
    assert (out / "change_probability.qml").exists() == (local / "change_probability.qml").exists()
    assert main(["compare", f"s3://{bucket}/a", b, "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"error: s3://{bucket}/a: an address on an object store; give the configuration whose "
        "output.dir it is\n"
    )

    # Versions are never drawn on another grid.
    assert publish(config).status == "published"
    shutil.copy(inputs / "north.tif", inputs / "wave.tif")  # another covariate: another grid
    run_stages(config, stages, Silent())
    done = publish(config)
    assert done.comparison["method"]["pixels"] == "means and deviations"
    assert main(["compare", f"{path}@v0001", f"{path}@current", "--out", str(out)]) == 0
    assert "the version keeps no model; means and standard deviations" in capsys.readouterr().err
    report = json.loads((out / "compare.json").read_text())
    assert report["differed"]["data"] == ["covariates.wave.path"]
