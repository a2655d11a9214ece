"""Versions keep their model and their change, so that they can be compared for good."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from pipeline.cli.main import main
from pipeline.config.reader import load_config
from pipeline.core.progress import Silent
from pipeline.publishing.publish import publish, publish_dir
from pipeline.publishing.summary import headline, page
from pipeline.publishing.versions import current_version, list_versions
from pipeline.run.runner import run_stages
from tests.pipeline.comparison.conftest import DOUBLED, make
from tests.pipeline.conftest import Files

ALL = ("ingest", "fit", "predict", "evaluate")


@pytest.fixture(scope="module")
def published(runs, tmp_path_factory):
    """Return a configuration with two versions: the second has the cases of an area doubled."""
    directory = tmp_path_factory.mktemp("published") / "maps"
    shutil.copytree(runs, directory, ignore=shutil.ignore_patterns("out-b"))
    config = load_config(directory / "a.yaml")
    run_stages(config, ALL, Silent())
    first = publish(config)
    assert (first.status, first.comparison) == ("published", None)
    shutil.copy(directory / "doubled.csv", directory / "cases.csv")
    run_stages(config, ALL, Silent())
    return directory / "a.yaml", config, publish(config)


def test_a_version_keeps_the_change_from_the_last(published):
    _, config, done = published
    version = current_version(publish_dir(config))
    report = json.loads((version.path / "compare.json").read_text())
    assert report["areas"]["largest_rises"][0]["id"] == DOUBLED
    assert report["method"] == {
        "pixels": "paired draws",
        "areas": "paired draws",
        "why": "",
        "n_draws": 40,
    }
    assert done.comparison == version.about["comparison"]
    assert done.comparison["with"] == "v0001"
    assert f"from v0001: {report['headline']}" in headline(config, done)
    assert "## Change from v0001" in page(config, done)
    assert "change_probability.tif" in page(config, done)
    assert {"change.csv", "model/arrays.npz"} <= set(version.about["files"])


@pytest.mark.ci
def test_totals_are_those_that_each_version_published(tmp_path):
    """Under an area effect a model conditions on its own counts, not on those of the new month."""
    directory = tmp_path / "maps"
    directory.mkdir()
    files = Files(directory)
    rng = np.random.default_rng(2)
    for k, name in enumerate(files.ids):
        people = files.population[files.pixels(k)].sum()
        files.cases[name] = str(rng.poisson(0.03 * np.exp(0.4 * rng.standard_normal()) * people))
    files.counts()
    path = make(directory, "a", model={"area_effect": True}, output={"draws": 100})
    config = load_config(path)
    run_stages(config, ALL, Silent())
    publish(config)
    first = pd.read_csv(config.output.dir / "areas.csv")
    for name in files.ids:
        files.cases[name] = str(round(0.3 * int(files.cases[name])))
    files.counts()
    run_stages(config, ALL, Silent())
    done = publish(config)
    second = pd.read_csv(config.output.dir / "areas.csv")
    total = json.loads((done.directory / "compare.json").read_text())["total"]
    for letter, table in (("a", first), ("b", second)):
        assert total["expected"][letter] == pytest.approx(table["fitted"].sum(), rel=1e-9)
        assert total["observed"][letter] == table["observed"].sum()
    assert total["expected"]["change_probability"] < 0.01
    said = f"in all, expected cases {first['fitted'].sum():,.0f} -> {second['fitted'].sum():,.0f}"
    assert said in headline(config, done)
    assert ": 0 rose and 9 fell (" in headline(config, done)


def test_two_versions_are_drawn_from_what_they_keep(published, tmp_path, capsys):
    path, config, _ = published
    out = tmp_path / "change"
    assert main(["compare", f"{path}@v0001", f"{path}@current", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "draws are paired" in told.err
    assert "B: little v0002" in told.out
    kept = current_version(publish_dir(config)).path
    for name in ("change.csv", "change_probability.tif", "difference_mean.tif"):
        if name.endswith(".csv"):
            assert (out / name).read_bytes() == (kept / name).read_bytes()
    # The first alone, by the directory of the version: as well.
    first = list_versions(publish_dir(config))[0].path
    assert main(["compare", str(first), str(path), "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["method"]["pixels"] == "paired draws"
    assert (report["a"]["version"], report["b"]["version"]) == ("v0001", None)


def test_without_its_grid_a_version_is_compared_by_its_maps(published, tmp_path, capsys):
    shutil.copytree(published[0].parent, tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "out-a" / "work" / "grid.zarr")
    versions = tmp_path / "moved" / "out-a" / "published" / "versions"
    for each in versions.iterdir():  # as on another machine
        run = json.loads((each / "run.json").read_text())
        run["config"]["output"]["dir"] = str(tmp_path / "elsewhere")
        (each / "run.json").write_text(json.dumps(run).ljust((each / "run.json").stat().st_size))
    out = tmp_path / "change"
    command = ["compare", str(versions / "v0001"), str(versions / "v0002"), "--out", str(out)]
    assert main(command) == 0
    told = capsys.readouterr()
    (note,) = told.err.splitlines()
    assert "its aligned grid is no longer there; means and standard deviations" in note
    report = json.loads((out / "compare.json").read_text())
    assert report["method"]["areas"] == "means and deviations"
    assert report["areas"]["largest_rises"][0]["id"] == DOUBLED
    assert report["areas"]["largest_rises"][0]["probability"] > 0.95
    assert report["total"]["expected"]["change_probability"] is None


def only_first(published, to):
    """Copy the project as it was before the second publication."""
    shutil.copytree(published[0].parent, to, symlinks=True)
    directory = to / "out-a" / "published"
    shutil.rmtree(directory / "versions" / "v0002")
    (directory / "current").unlink()
    (directory / "current").symlink_to("versions/v0001")
    return directory


@pytest.mark.parametrize("asked", ["auto", False])
def test_the_comparison_can_be_cheap_or_none(published, tmp_path, monkeypatch, asked):
    from pipeline.publishing import kept

    only_first(published, tmp_path / "c")
    config = load_config(tmp_path / "c" / "a.yaml", changes={"publish": {"compare": asked}})
    monkeypatch.setattr(kept, "CHEAP", 1)
    done = publish(config)
    assert done.status == "published"
    if asked is False:
        assert done.comparison is None
        assert not (done.directory / "compare.json").exists()
    else:
        assert done.comparison["method"]["pixels"] == "means and deviations"


def test_a_comparison_that_fails_is_no_reason_not_to_publish(published, tmp_path):
    directory = only_first(published, tmp_path / "c")
    about = directory / "versions" / "v0001" / "run.json"
    about.write_text("{}".ljust(about.stat().st_size))
    config = load_config(tmp_path / "c" / "a.yaml")
    done = publish(config)
    assert done.status == "published"
    assert "does not describe a run" in done.comparison["skipped"]
    assert "## Change from v0001\n\nnot compared:" in page(config, done)
