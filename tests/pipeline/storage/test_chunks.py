"""Zarr stores and STAC assets at addresses: each chunk and window that is needed comes once."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geo.core.errors import InputError
from geo.grids.grid import Tile
from geo.sources.raster_header import BandChoice
from geo.sources.registry import source_of
from pipeline.cli.main import main
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.input_cache import is_cached, local_copy
from pipeline.storage.location import Storage, StorageError
from tests.pipeline.run.test_cubes import configured, daily, stored
from tests.pipeline.series_inputs import SIDE
from tests.pipeline.storage.parts_server import serving_parts
from tests.pipeline.storage.s3_server import Weather, request, stormy

JANUARY = BandChoice(variable="rain", time="2024-01", aggregate="sum")


def write_cube(folder: Path, last: str = "2024-04-30") -> xr.Dataset:
    """Write days in chunks of 16 days and 8 x 8 pixels."""
    data = daily(last)
    chunks = {name: {"chunks": (16, 8, 8)} for name in ("rain", "t2m")}
    shutil.rmtree(folder / "days.zarr", ignore_errors=True)
    data.to_zarr(folder / "days.zarr", consolidated=True, encoding=chunks, zarr_format=3)
    return data


def of_month(data: xr.Dataset, month: str = "2024-01") -> np.ndarray:
    return data.rain.sel(time=month).sum("time", skipna=False).values[::-1]


@pytest.fixture
def web(tmp_path):
    (tmp_path / "in").mkdir()
    with serving_parts(tmp_path / "in") as server:
        yield server, Storage(None, 1, 5.0, str(tmp_path / "scratch"))


def chunk_reads(server) -> int:
    """Return how many chunks of data were sent: their names are numbers."""
    return sum(command == "GET" and name.isdecimal() for command, name in server.log)


@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_only_the_chunks_of_a_window_and_a_month_come_and_once(web, tmp_path):
    server, storage = web
    data = write_cube(server.folder)
    url = f"{server.url}/days.zarr"
    assert is_cached(f"{url}/?key=secret")
    copy = local_copy(url, storage)
    source = source_of(copy, JANUARY)
    axes = chunk_reads(server)  # coordinates: a chunk each
    assert axes <= 3
    np.testing.assert_allclose(source.read(Tile(0, 0, 8, 8)), of_month(data)[:8, :8])
    # January is in three chunks of 16 days from 1 November on, a quarter of the pixels in each.
    assert chunk_reads(server) - axes == 3
    sent = pickle.loads(pickle.dumps(source))
    np.testing.assert_allclose(sent.read(Tile(0, 0, 8, 8)), of_month(data)[:8, :8])
    again = source_of(local_copy(url, storage), JANUARY)  # a later command
    np.testing.assert_allclose(again.read(Tile(2, 2, 5, 5)), of_month(data)[2:7, 2:7])
    assert chunk_reads(server) - axes == 3
    np.testing.assert_allclose(again.read(), of_month(data))
    assert chunk_reads(server) - axes == 12
    # A longer store is another one.
    first = fingerprint_file(url, storage)
    assert fingerprint_file(copy) == first
    data = write_cube(server.folder, "2024-05-31")
    assert fingerprint_file(url, storage) not in (first, "absent")
    april = BandChoice(variable="rain", time="2024-05", aggregate="sum")
    np.testing.assert_allclose(
        source_of(local_copy(url, storage), april).read(), of_month(data, "2024-05")
    )
    assert fingerprint_file(f"{server.url}/none.zarr", storage) == "absent"


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_a_chunk_that_is_not_stored_is_missing_and_one_that_is_refused_an_error(web):
    server, storage = web
    write_cube(server.folder)
    (server.folder / "days.zarr/rain/c/4/0/0").unlink()
    source = source_of(local_copy(f"{server.url}/days.zarr", storage), JANUARY)
    for _ in range(2):
        found = source.read(Tile(8, 0, 8, 8))  # rows run to the north
        assert np.isnan(found).all()
    n = len(server.log)
    source.read(Tile(8, 0, 8, 8))
    assert len(server.log) == n
    server.status = 403
    with pytest.raises((StorageError, InputError), match="access denied"):
        source.read(Tile(0, 8, 8, 8))


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_an_object_store_tells_of_each_chunk(s3, bucket, tmp_path):
    data = write_cube(tmp_path)

    def put(path: Path) -> None:
        name = path.relative_to(tmp_path).as_posix()
        assert request(s3, "PUT", f"/{bucket}/in/{name}", path.read_bytes())[0] == 200

    for path in (tmp_path / "days.zarr").rglob("*"):
        if path.is_file():
            put(path)
    with stormy(s3, Weather(seed=1)) as through:
        storage = Storage(through, 2, 5.0, str(tmp_path / "scratch"))
        url = f"s3://{bucket}/in/days.zarr"
        first = fingerprint_file(url, storage)
        source = source_of(local_copy(url, storage), JANUARY)
        np.testing.assert_allclose(source.read(), of_month(data))
        (tmp_path / "days.zarr/rain/c/4/0/0").write_bytes(
            (tmp_path / "days.zarr/rain/c/5/0/0").read_bytes()
        )
        put(tmp_path / "days.zarr/rain/c/4/0/0")
        assert fingerprint_file(url, storage) != first
        changed = source_of(local_copy(url, storage), JANUARY).read()
        assert not np.allclose(changed, of_month(data))
        assert changed.shape[0] == SIDE


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
def test_a_run_reads_each_remote_input_once(web, tmp_path, monkeypatch):
    """Rasters, items and a cube at addresses: the values of local ones, and no byte twice."""
    server, _ = web
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = configured(tmp_path, n=2, wet="lag: [0, 1]")
    data = write_cube(server.folder)
    for name in ("elevation.tif", "people.tif"):
        if (tmp_path / name).exists():
            (tmp_path / name).rename(server.folder / name)
    item = {
        "type": "Feature", "stac_version": "1.1.0", "id": "e", "geometry": None, "links": [],
        "properties": {"datetime": "2020-01-01T00:00:00Z"},
        "assets": {"data": {"href": "./elevation.tif", "type": "image/tiff"}},
    }  # fmt: skip
    (server.folder / "item.json").write_text(json.dumps(item))
    text = config.read_text()
    text = text.replace("path: days.zarr", f"path: {server.url}/days.zarr")
    text = text.replace("path: people.tif", f"path: {server.url}/people.tif")
    lines = text.splitlines(keepends=True)
    k = next(k for k, line in enumerate(lines) if line.startswith("  elevation:"))
    lines[k] = f"  elevation: {{stac: {{path: '{server.url}/item.json', asset: data}}}}\n"
    text = "".join(lines) + f"storage: {{scratch: {tmp_path / 'scratch'}}}\n"
    config.write_text(text, encoding="utf-8")
    server.reset()
    assert main(["ingest", str(config), "--quiet"]) == 0
    names, found = stored(config, "2024-01")
    assert names == ("elevation", "rain", "wet", "wet_lag1", "heat")
    np.testing.assert_allclose(found[2], of_month(data), rtol=1e-6)
    np.testing.assert_allclose(found[3], of_month(data, "2023-12"), rtol=1e-6)
    # Rain from December on, for the lag, and heat from January on; March is forecast.
    days = {"rain": ("2023-12-01", "2024-03-31"), "t2m": ("2024-01-01", "2024-03-31")}
    wanted = set()
    for name, ends in days.items():
        first, last = ((np.datetime64(d) - np.datetime64("2023-11-01")).astype(int) for d in ends)
        wanted |= {
            f"days.zarr/{name}/c/{k}/{i}/{j}"
            for k in range(first // 16, last // 16 + 1)
            for i in range(2)
            for j in range(2)
        }
    got = Counter(server.paths)
    assert {path for path in got if "/c/" in path and path.split("/")[1] in days} == wanted
    assert {path for path, n in got.items() if n > 1} <= {"item.json"}
    assert got["elevation.tif"] == 1
    asked = Counter(name for command, name in server.log if command == "HEAD")
    assert max(asked.values()) <= 4, asked  # states: of the run, and of each of its checks
    for more in ([], ["--force"]):  # nothing has changed: nothing is fetched again
        server.reset()
        assert main(["ingest", str(config), "--quiet", *more]) == 0
        assert set(server.paths) <= {"item.json"}
