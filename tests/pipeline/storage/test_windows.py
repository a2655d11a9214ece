"""Rasters at addresses are read by windows: the same values as of a local file, of few bytes."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from affine import Affine

from geo.grids.grid import Tile
from geo.sources.raster import RasterSource
from geo.sources.registry import source_of
from pipeline.cli.main import main
from pipeline.storage import web_state
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.input_cache import is_cached, local_copy
from pipeline.storage.location import Storage, StorageError, StorageUnreachableError
from pipeline.storage.windows import copied_state, copy_at
from tests.bands import write
from tests.pipeline.cli.hanging import breaking_off
from tests.pipeline.storage.parts_server import serving_parts
from tests.pipeline.storage.s3_server import Weather, request, stormy
from tests.servers import running

SIDE = 1024
SOME = Tile(300, 500, 200, 260)


def write_raster(path: Path, seed: int = 1, **options: Any) -> np.ndarray:
    """Write a raster of 4 MB with 250 m pixels; the areas of ``files`` are near its middle."""
    values = np.random.default_rng(seed).normal(size=(SIDE, SIDE)).astype("float32")
    place = Affine(250, 0, 5e5 - 1e5, 0, -250, 8e6 + 1e5)
    settings = {"tiled": True, "crs": "EPSG:32738", **options}
    write(path, values, nodata=-1, transform=place, **settings)
    return values


class Place:
    """A raster on a server that counts; ``address`` names it."""

    def __init__(self, kind: str, folder: Path, scratch: Path) -> None:
        self.kind, self.folder = kind, folder
        self.storage = Storage(None, 2, 5.0, str(scratch))
        self.server: Any = None
        self.put: Any = None
        self.base = ""

    def address(self, name: str = "wide.tif") -> str:
        return f"{self.base}/{name}"

    def write(self, seed: int, **options: Any) -> np.ndarray:
        values = write_raster(self.folder / "wide.tif", seed, **options)
        self.put("wide.tif")
        return values

    def source(self) -> RasterSource:
        copy = local_copy(self.address(), self.storage)
        assert copy is not None
        return source_of(copy)


@pytest.fixture(params=["http", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path):
    """Serve a folder with a wide raster over HTTP, or from S3."""
    (tmp_path / "in").mkdir()
    place = Place(request.param, tmp_path / "in", tmp_path / "scratch")
    if place.kind == "http":
        with serving_parts(place.folder) as server:
            place.base, place.server, place.put = server.url, server, lambda name: None
            place.write(1)
            yield place
        return
    bucket, s3 = request.getfixturevalue("bucket"), request.getfixturevalue("s3")
    with stormy(s3, sky := Weather(seed=1)) as through:
        place.storage = Storage(through, 2, 5.0, str(tmp_path / "scratch"))
        place.base, place.server = f"s3://{bucket}/in", sky
        place.put = lambda name: put(s3, bucket, place.folder / name)
        place.write(1)
        yield place


def put(endpoint: str, bucket: str, path: Path) -> None:
    status, _ = request(endpoint, "PUT", f"/{bucket}/in/{path.name}", path.read_bytes())
    assert status == 200


def test_windows_have_the_values_of_the_file_and_come_once(place):
    here, there = RasterSource(place.folder / "wide.tif"), place.source()
    assert str(there.describe()) == str(here.describe())
    assert place.server.sent < 100_000  # the header
    np.testing.assert_array_equal(there.read(SOME), here.read(SOME))
    sent = place.server.sent
    assert sent < 1.7e6  # four blocks and what lies beside them, of 4.2 MB
    n = len(place.server.log)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there)).read(SOME), here.read(SOME))
    assert (len(place.server.log), place.server.sent) == (n, sent)
    # A later command finds what is here, and threads fetch the rest once.
    again = place.source()
    tiles = [Tile(r, c, 128, 128) for r in range(0, SIDE, 128) for c in range(0, SIDE, 128)]
    with ThreadPoolExecutor(6) as pool:
        for tile, found in zip(tiles, pool.map(again.read, tiles), strict=True):
            np.testing.assert_array_equal(found, here.read(tile))
    size = (place.folder / "wide.tif").stat().st_size
    assert place.server.sent < 1.1 * size
    shutil.rmtree(Path(place.storage.scratch) / "inputs")  # a copy that was removed comes anew
    np.testing.assert_array_equal(place.source().read(SOME), here.read(SOME))


def test_the_fingerprint_is_what_the_server_says_of_the_content(place):
    one = fingerprint_file(place.address(), place.storage)
    copy = local_copy(place.address(), place.storage)
    assert fingerprint_file(copy) == one
    assert str((place.folder / "wide.tif").stat().st_size) in copied_state(copy)
    place.source().read(SOME)
    assert fingerprint_file(copy) == one  # whatever part of it is here
    assert place.server.sent < 2e6
    place.put("wide.tif")
    assert fingerprint_file(place.address(), place.storage) == one
    place.write(2)
    other = fingerprint_file(place.address(), place.storage)
    assert other not in (one, "absent")
    place.write(1)
    assert fingerprint_file(place.address(), place.storage) == one
    assert fingerprint_file(place.address("none.tif"), place.storage) == "absent"


@pytest.mark.ci
def test_a_change_while_it_is_read_ends_with_a_line(place):
    source = place.source()
    source.read(Tile(0, 0, 10, 10))
    place.write(2)
    with pytest.raises(StorageError, match="changed while it was read; wait until") as caught:
        source.read(SOME)
    assert str(caught.value).startswith(f"{place.address()}: ")
    assert "\n" not in str(caught.value)
    here = RasterSource(place.folder / "wide.tif")
    np.testing.assert_array_equal(place.source().read(SOME), here.read(SOME))  # the next command


def test_a_connection_that_breaks_is_tried_again_then_told(place):
    source, here = place.source(), RasterSource(place.folder / "wide.tif")

    def breaking(n_answer: int) -> None:
        left = iter(range(n_answer))
        place.server.cut, place.server.short = n_answer, 1.0
        place.server.only = lambda method, path: method == "GET" and next(left, None) is not None

    breaking(2)
    np.testing.assert_array_equal(source.read(SOME), here.read(SOME))
    breaking(99)
    far = Tile(900, 0, 10, 10)
    with pytest.raises(StorageUnreachableError, match="after 3 attempts") as caught:
        source.read(far)
    assert str(caught.value).startswith(f"{place.address()}: cannot be re")
    assert "\n" not in str(caught.value)
    breaking(0)
    np.testing.assert_array_equal(source.read(far), here.read(far))  # nothing short was kept


@pytest.fixture
def web(tmp_path):
    (tmp_path / "in").mkdir()
    write_raster(tmp_path / "in" / "wide.tif")
    with serving_parts(tmp_path / "in") as server:
        yield server, Storage(None, 1, 5.0, str(tmp_path / "scratch"))


@pytest.mark.parametrize("lacking", ["ranges", "tags"])
def test_a_server_without_parts_or_states_is_copied_whole_and_said(web, lacking, caplog):
    server, storage = web
    setattr(server, lacking, False)
    with caplog.at_level(logging.INFO):
        copy = local_copy(f"{server.url}/wide.tif", storage)
    assert copy_at(copy) is None
    assert copy.read_bytes() == (server.folder / "wide.tif").read_bytes()
    assert ("copied whole" in caplog.text) == (lacking == "ranges")
    assert fingerprint_file(f"{server.url}/wide.tif", storage) == fingerprint_file(
        server.folder / "wide.tif"
    )


def test_small_rasters_and_other_formats_are_whole(web):
    server, storage = web
    small = np.zeros((4, 4), "float32")
    for name, driver in (("a.tif", "GTiff"), ("a.nc", "netCDF"), ("a.asc", "AAIGrid")):
        place = Affine(2, 0, 0, 0, -2, 8)
        write(server.folder / "x.tif", small, crs="EPSG:4326", transform=place)
        rasterio.shutil.copy(server.folder / "x.tif", server.folder / name, driver=driver)
        assert is_cached(f"{server.url}/{name}?key=secret")
        copy = local_copy(f"{server.url}/{name}?key=secret", storage)
        assert copy.read_bytes() == (server.folder / name).read_bytes()
        assert "secret" not in str(copy)
    for name in ("a.csv", "a.geojson", "a.vrt", "a"):
        assert not is_cached(f"{server.url}/{name}")


def test_signed_addresses_that_answer_no_head_are_read_by_windows(web, monkeypatch):
    server, storage = web
    ask = web_state._ask

    def refusing(url: str, method: str, *rest: Any) -> Any:
        return web_state._REFUSED if method == "HEAD" else ask(url, method, *rest)

    monkeypatch.setattr(web_state, "_ask", refusing)
    copy = local_copy(f"{server.url}/wide.tif?X-Amz-Signature=s", storage)
    assert copy_at(copy) is not None
    assert server.sent < 100_000


def test_a_refused_address_is_a_line_without_its_secret(web):
    server, storage = web
    url = f"{server.url.replace('//', '//user:planted@')}/wide.tif?X-Amz-Signature=planted"
    source = source_of(local_copy(url, storage))
    server.status = 403
    with pytest.raises(StorageError, match=r"access denied .*HTTP 403.*; correct or renew") as one:
        source.read(SOME)
    assert str(one.value).startswith(f"{server.url}/wide.tif: ")
    assert "planted" not in str(one.value)


def test_an_expired_credential_is_a_line_with_host_and_key(s3, bucket, tmp_path):
    """As S3 answers: a reason in the body of a GET, and none to a HEAD."""
    write_raster(tmp_path / "wide.tif")
    put(s3, bucket, tmp_path / "wide.tif")
    text = (
        b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>"
        b"<Token-0>planted</Token-0></Error>"
    )

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self.send_response(400)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(text)

        do_HEAD = do_GET

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        expired = f"http://127.0.0.1:{port}"
        with stormy(s3, Weather()) as through:
            storage = Storage(through, 3, 5.0, str(tmp_path / "scratch"))
            source = source_of(local_copy(f"s3://{bucket}/in/wide.tif", storage))
        remote = copy_at(source.path).remote
        object.__setattr__(remote, "storage", Storage(expired, 3, 5.0, storage.scratch))
        look = lambda: local_copy(f"s3://{bucket}/in/wide.tif", remote.storage)  # noqa: E731
        for ask in (look, lambda: source.read(SOME)):
            with pytest.raises(StorageError) as caught:
                ask()
            line = str(caught.value)
            start = f"s3://{bucket}/in/wide.tif: access denied by 127.0.0.1:{port} ("
            assert line.startswith(start)
            assert "expired" in line
            assert line.endswith(
                "renew the credentials (log in again, or ask for a new token), then repeat the "
                "command"
            )
            assert "planted" not in line


def ingested(config: Path) -> dict[str, Any]:
    out = config.parent / "out" / "work"
    found: dict[str, Any] = {}
    for store in ("grid.zarr", "bags.zarr"):
        files = (p for p in (out / store).rglob("*") if "c" in p.relative_to(out).parts)
        found |= {str(p.relative_to(out)): p.read_bytes() for p in files if p.is_file()}
    assert len(found) > 5
    return found


@pytest.mark.ci
def test_plan_reads_headers_and_ingest_what_the_areas_cover(place, files, monkeypatch, capsys):
    """The stores of a run with the rasters at addresses are those with them on disk."""
    write_raster(place.folder / "strip.tif", 5, tiled=False, blockysize=SIDE, compress="deflate")
    place.put("strip.tif")
    rasters = {"wide": ("wide.tif", "average"), "strip": ("strip.tif", "bilinear")}
    if place.storage.endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", place.storage.endpoint)
    found, place.server.sent = {}, 0
    for where in (str(place.folder), place.base):
        mapping = files.mapping()
        for name, (file, resampling) in rasters.items():
            mapping["covariates"][name] = {"path": f"{where}/{file}", "resampling": resampling}
        mapping["storage"] = {"scratch": place.storage.scratch}
        config = files.directory / "disagg.yaml"
        config.write_text(json.dumps(mapping))
        if where == place.base:
            assert main(["plan", str(config), "--json"]) == 0
            planned, sent = json.loads(capsys.readouterr().out)["bytes"], place.server.sent
            assert sent < 150_000  # two headers
            assert main(["check", str(config), "-q"]) == 0
            checked = place.server.sent - sent
            strip = (place.folder / "strip.tif").stat().st_size
            assert checked < 0.7 * (place.folder / "wide.tif").stat().st_size + strip
            assert checked <= planned["fetched"] <= 1.3 * checked
            assert planned["copies"] - planned["fetched"] == pytest.approx(sent, rel=0.2)
        assert main(["ingest", str(config), "-q"]) == 0
        found[where] = ingested(config)
        shutil.rmtree(files.directory / "out")
        if where == place.base:  # ingest found what the check had read; a listing has some bytes
            assert place.server.sent < sent + checked + 10_000
        else:
            assert place.server.sent == 0
    here, there = found.values()
    assert here == there


def test_a_part_that_was_not_asked_for_is_no_whole_file(tmp_path):
    """The file is small, so it is copied whole; the server answers with its first half."""
    source = tmp_path / "far.tif"
    source.write_bytes(bytes(30_000))
    storage = Storage(None, 0, 5.0, str(tmp_path / "scratch"))
    with breaking_off(source, 20_000) as port:
        address = f"http://127.0.0.1:{port}/far.tif"
        with pytest.raises(StorageUnreachableError, match="received 20000 bytes instead of 30000"):
            local_copy(address, storage)
    assert not list((tmp_path / "scratch").rglob("far.tif"))


def test_a_login_is_not_sent_on_by_a_redirect(tmp_path):
    seen: list[tuple[str, bool]] = []
    ports: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            first = self.server.server_address[1] == ports[0]
            seen.append(("here" if first else "elsewhere", "Authorization" in self.headers))
            self.send_response(302 if first else 200)
            self.send_header("Location", f"http://localhost:{ports[-1]}/x.tif")
            self.send_header("ETag", '"one"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    with running(servers[0]) as one, running(servers[1]) as two:
        ports += [one, two]
        web_state.web_state(f"http://me:planted@127.0.0.1:{one}/x.tif", Storage(None, 0, 5.0))
    assert seen == [("here", True), ("elsewhere", False)]
