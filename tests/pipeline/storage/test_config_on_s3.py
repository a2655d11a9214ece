"""A configuration on a bucket; tests/infra/test_batch.py runs one, as a batch job does."""

from __future__ import annotations

import pytest

from pipeline.cli.main import main
from pipeline.config.reader import read_config
from pipeline.config.remote_base import anchored
from pipeline.storage.location import Location
from tests.pipeline.storage.s3_server import new_bucket, request


@pytest.fixture
def endpoint(s3, tmp_path, monkeypatch):
    """Let the environment alone name the server and the scratch directory, as in a container."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return s3


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "error: s3://BUCKET/no.yaml: no such object; correct the address"),
        ("areas: [", "error: no.yaml line 1"),
        ("metrics: {textfile: m}", "metrics.textfile: m, relative to a configuration on an object"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(endpoint, capsys, text, found):
    bucket = new_bucket(endpoint)
    if text is not None:
        request(endpoint, "PUT", f"/{bucket}/no.yaml", text.encode())
    assert main(["run", f"s3://{bucket}/no.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert found.replace("BUCKET", bucket) in line


def test_missing_objects_are_told_with_their_addresses(endpoint, capsys):
    bucket = new_bucket(endpoint)
    text = "areas: {path: a.gpkg, id: i}\ncounts: {path: ../c.csv, value: n}\n"
    text += "population: {path: p.tif}\ncovariates: {x: {path: deep/x.tif}}\n"
    request(endpoint, "PUT", f"/{bucket}/maps/my.yaml", text.encode())
    assert main(["run", f"s3://{bucket}/maps/my.yaml"]) == 2
    told = capsys.readouterr().err
    for name in ("maps/a.gpkg", "c.csv", "maps/p.tif", "maps/deep/x.tif"):
        assert f"s3://{bucket}/{name})" in told


def test_a_store_that_is_away_is_told_to_try_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr("pipeline.updates.retry.RetryPolicy.retries", 0, raising=False)
    monkeypatch.setattr("pipeline.updates.retry.time.sleep", lambda _: None)
    assert main(["run", "s3://bucket/my.yaml"]) == 75
    assert "s3://bucket/my.yaml: cannot be read after 7 attempts" in capsys.readouterr().err


def test_relative_paths_are_those_of_inputs_and_results():
    prefix = Location("s3://bucket/maps")
    elsewhere = {"x": {"path": "https://example.org/x.tif"}, "y": {"path": "/data/y.tif"}}
    data = {
        "areas": {"path": "a.gpkg"},
        "grid": {"like": "../p.tif"},
        "covariates": {**elsewhere, "t": {"table": "t.csv"}, "s": {"slope": "z.tif"}},
        "evaluate": {"folds": {"path": "f.csv"}},
        "output": {"areas": [{"path": "l.gpkg"}]},
        "notify": {"path": "kept"},
    }
    problems: list = []
    assert anchored(data, prefix, "my.yaml", problems) == {
        "areas": {"path": "s3://bucket/maps/a.gpkg"},
        "grid": {"like": "s3://bucket/p.tif"},
        "covariates": {
            **elsewhere,
            "t": {"table": "s3://bucket/maps/t.csv"},
            "s": {"slope": "s3://bucket/maps/z.tif"},
        },
        "evaluate": {"folds": {"path": "s3://bucket/maps/f.csv"}},
        "output": {"areas": [{"path": "s3://bucket/maps/l.gpkg"}], "dir": "s3://bucket/maps/out"},
        "notify": {"path": "kept"},
    }
    assert problems == []


def test_periods_are_found_beside_it(endpoint):
    bucket = new_bucket(endpoint)
    text = 'areas: {path: a.gpkg, id: i}\ncounts: {path: "c_{period}.csv", value: n}\n'
    text += "population: {path: p.tif}\ncovariates: {x: {path: x.tif}}\n"
    request(endpoint, "PUT", f"/{bucket}/maps/my.yaml", text.encode())
    for period in ("2026-01", "2026-02"):
        request(endpoint, "PUT", f"/{bucket}/maps/c_{period}.csv", b"i,n\n")
    problems: list = []
    config = read_config(f"s3://{bucket}/maps/my.yaml", problems)
    assert problems == []
    assert config.period == "2026-02"
    assert config.counts.path == f"s3://{bucket}/maps/c_2026-02.csv"
    assert config.output.place == f"s3://{bucket}/maps/out"
