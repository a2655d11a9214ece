"""Object stores that fail: work goes on, or one line says what stopped it; never a wrong byte."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli.main import main
from pipeline.core.errors import StoreError
from pipeline.storage import location as storage
from pipeline.storage.fingerprint import fingerprint_file
from pipeline.storage.local_commit import is_current
from pipeline.storage.location import Location, Storage, StorageError, is_object_address
from pipeline.storage.object_commit import MARKER, open_finished, place_of, write_link
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.bag_writer import FORMAT, VERSION
from tests.command import Command
from tests.pipeline.storage.s3_server import Weather, request, stormy

ROOT = Path(__file__).parents[3]
N_BAG, SIZE = 12, 40


def write_some(path: Any, fingerprint: str = "one", scale: float = 1.0) -> None:
    """Write a store of equal bags; ``scale`` makes another one of it."""
    rng = np.random.default_rng(0)
    x = (scale * rng.normal(size=(N_BAG, SIZE, 2))).astype(np.float32)

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        part = [x[b, i:j] for b, i, j in zip(bag, start, stop, strict=True)]
        pixel = [np.arange(i, j) for i, j in zip(start, stop, strict=True)]
        n = sum(map(len, part))
        return PixelRows(np.concatenate(part), np.ones(n), np.zeros((n, 2)), np.concatenate(pixel))

    write_bags(
        path,
        NewBags(
            sizes=np.full(N_BAG, SIZE),
            rows=rows,
            y=np.arange(N_BAG, dtype=float),
            ids=[f"Ä{k}" for k in range(N_BAG)],
            covariates=["a", "b"],
        ),
        seed=3,
        fingerprint=fingerprint,
        workers=2,
        layout=StoreLayout(chunk_pixels=64, shard_pixels=256, block_pixels=100),
    )


@contextmanager
def weather(endpoint: str, **how: Any) -> Iterator[tuple[Weather, Storage]]:
    """Have addresses without other options lead through a proxy inside."""
    sky = Weather(**how)
    with stormy(endpoint, sky) as through, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", through)
        yield sky, Storage(through)


def objects(endpoint: str, bucket: str, prefix: str = "") -> dict[str, bytes]:
    """List and read objects by plain HTTP."""
    import re

    _, text = request(endpoint, "GET", f"/{bucket}?list-type=2&prefix={prefix}")
    keys = re.findall(r"<Key>([^<]*)</Key>", text.decode())
    return {key: request(endpoint, "GET", f"/{bucket}/{key}")[1] for key in keys}


def version_of(endpoint: str, bucket: str, store: str) -> str:
    """Return the prefix that a store's pointer names."""
    status, text = request(endpoint, "GET", f"/{bucket}/{store}/{MARKER}")
    assert status == 200
    return str(json.loads(text)["data"])


def test_addresses_are_told_from_paths():
    for text in ("s3://b/k", "gs://b/k", "memory://k", Path("s3://b/k")):
        assert is_object_address(text), text
    for text in ("out", "/data/s3", "https://host/x.tif", "/vsis3/b/k", "C://x", "s3:"):
        assert not is_object_address(text), text
    assert str(Location(str(Path("s3://b/k/")))) == "s3://b/k"
    place = Location("s3://b/k", Storage("http://x", 1, 2.0))
    assert pickle.loads(pickle.dumps(place)) == place
    assert (place / "m" / "n").url == "s3://b/k/m/n"


def test_objects_are_whole_and_a_prefix_is_no_more_than_itself(s3, bucket, tmp_path):
    place = Location(f"s3://{bucket}/map")
    place_2 = Location(f"s3://{bucket}/map-2")
    (place / "a/b").write(b"0123456789")
    (place_2 / "c").write(b"other")
    assert {name: each.size for name, each in place.list().items()} == {"a/b": 10}
    assert (place / "a/b").read(2, 5) == b"234"
    assert (place / "a/b").read(-3) == b"789"
    assert (place / "a/b").read(7) == b"789"
    assert (place / "a").info() is None
    with pytest.raises(FileNotFoundError):
        (place / "a/none").read()
    (place / "a/b").copy_to(place / "d")
    assert objects(s3, bucket, "map/")["map/d"] == b"0123456789"
    assert (place / "d").download(tmp_path / "x" / "d").size == 10
    assert (tmp_path / "x" / "d").read_bytes() == b"0123456789"
    place.remove(["a/b", "never was"])
    assert list(place.list()) == ["d"]
    assert request(s3, "GET", f"/{bucket}/map-2/c") == (200, b"other")


def test_a_condition_keeps_two_writers_apart(bucket):
    place = Location(f"s3://{bucket}/one")
    place.write(b"first", if_tag="")
    with pytest.raises(FileExistsError):
        place.write(b"second", if_tag="")
    tag = place.info().tag
    place.write(b"third", if_tag=tag)
    with pytest.raises(FileExistsError):
        place.write(b"fourth", if_tag=tag)
    assert place.read() == b"third"


def test_large_objects_go_up_and_down_by_parts_through_a_storm(s3, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "PART_BYTES", 1 << 16)
    monkeypatch.setattr(storage, "_BYTES_AT_ONCE", 1 << 16)
    data = np.random.default_rng(1).bytes(10 << 16)
    (tmp_path / "big").write_bytes(data)
    with weather(s3, seed=5, error=0.15, reset=0.15, short=0.15) as (sky, _):
        place = Location(f"s3://{bucket}/big")
        place.put(tmp_path / "big")
        place.download(tmp_path / "again")
        assert sum(map(sky.count, ("error", "reset", "short"))) >= 2
    assert (tmp_path / "again").read_bytes() == data
    assert request(s3, "GET", f"/{bucket}/big")[1] == data
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "big"]


def test_work_goes_on_through_each_failure(s3, bucket):
    kinds = ("error", "reset", "late_reset", "short")
    with weather(s3, seed=3, **dict.fromkeys(kinds, 0.1)) as (sky, _):
        place = Location(f"s3://{bucket}/x")
        for k in range(10):
            (place / str(k)).write(b"%d" % k * 1000)
            assert (place / str(k)).read() == b"%d" % k * 1000
            assert (place / str(k)).read(100, 200) == (b"%d" % k * 1000)[100:200]
        assert all(sky.count(kind) > 1 for kind in kinds)
    assert len(objects(s3, bucket)) == 10


def test_a_slow_answer_is_waited_for_and_a_silent_store_is_not(s3, bucket):
    with weather(s3, slow=1.0, slow_seconds=0.4):
        Location(f"s3://{bucket}/x").write(b"late")
    assert Location(f"s3://{bucket}/x").read() == b"late"
    with weather(s3, slow=1.0, slow_seconds=0.8) as (sky, through):
        hurried = replace(through, retries=1, timeout=0.2)
        with pytest.raises(StorageError, match="after 2 attempts") as caught:
            Location(f"s3://{bucket}/x", hurried).read()
        assert sky.count("slow") == 2
    assert "imed out" in str(caught.value) or "imeout" in str(caught.value)


def test_what_fails_for_good_is_one_line_after_every_attempt(s3, bucket):
    with weather(s3, error=1.0) as (sky, options):
        with pytest.raises(StorageError) as caught:
            Location(f"s3://{bucket}/x").write(b"never")
        assert sky.count("error") == options.retries + 1
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"s3://{bucket}/x: cannot be written after 7 attempts")
    assert "repeat the command" in said
    assert objects(s3, bucket) == {}


def test_what_no_attempt_can_mend_is_tried_once(s3, bucket, monkeypatch):
    with weather(s3, denied=1.0) as (sky, _):
        with pytest.raises(StorageError, match=r"access denied.*; set credentials"):
            Location(f"s3://{bucket}/x").write(b"")
        assert len(sky.log) == 1
    with weather(s3) as (sky, _):
        with pytest.raises(StorageError, match="no such bucket; create it"):
            Location("s3://nobody-made-this/x").write(b"")
        assert len(sky.log) == 1


def test_waits_double_and_are_random(s3, bucket, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(storage, "_FIRST_WAIT", 1.0)
    monkeypatch.setattr(storage, "_LONGEST_WAIT", 8.0)
    monkeypatch.setattr(storage.time, "sleep", waits.append)
    with weather(s3, error=1.0, only=lambda method, path: method == "GET") as (_, through):
        place = Location(f"s3://{bucket}/x", replace(through, retries=4))
        for _ in range(12):
            with pytest.raises(StorageError):
                place.read()
    table = np.array(waits).reshape(12, 4)
    most = np.array([1, 2, 4, 8])
    assert (table <= most).all()
    # Uniform up to the limit: the mean of 12 is half of it, give or take four deviations.
    assert np.abs(table.mean(axis=0) / most - 0.5).max() < 4 / np.sqrt(12 * 12)
    assert len(np.unique(table)) == table.size


def test_no_credentials_are_one_line(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = Storage("http://127.0.0.1:9", 3, 1.0)
    with pytest.raises(StorageError, match="no credentials were found; set credentials"):
        Location(f"s3://{bucket}/x", options).read()


def test_a_package_that_is_not_installed_is_one_line(monkeypatch, capsys):
    def lacking(scheme: str, **settings: Any) -> None:
        raise ImportError(scheme)

    monkeypatch.setattr("fsspec.filesystem", lacking)
    # Another server than any before: no file system is known for it yet.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://nobody")
    assert main(["bags", "info", "gs://bucket/x.zarr"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: gs://: no support for this scheme; install gcsfs")


@pytest.mark.ci
def test_a_store_on_s3_holds_the_bytes_of_one_on_disk(s3, bucket, tmp_path):
    write_some(tmp_path / "bags.zarr")
    share = {"error": 0.06, "reset": 0.06, "late_reset": 0.06, "short": 0.06, "slow": 0.03}
    with weather(s3, seed=11, slow_seconds=0.05, **share) as (sky, _):  # through a storm
        write_some(f"s3://{bucket}/bags.zarr")
        for block in BagStore.open(f"s3://{bucket}/bags.zarr").blocks():
            assert np.isfinite(block.x).all()
        assert all(sky.count(kind) for kind in share)
    here, there = BagStore.open(tmp_path / "bags.zarr"), BagStore.open(f"s3://{bucket}/bags.zarr")
    version = version_of(s3, bucket, "bags.zarr")
    found = objects(s3, bucket, f"bags.zarr/{version}/")
    files = {
        p.relative_to(here.path).as_posix(): p.read_bytes()
        for p in Path(here.path).rglob("*")
        if p.is_file() and p.name != MARKER
    }
    assert {k.removeprefix(f"bags.zarr/{version}/"): v for k, v in found.items()} == files
    again = pickle.loads(pickle.dumps(there))
    assert again.ids == here.ids
    for ours, theirs in zip(here.blocks(), again.blocks(), strict=True):
        np.testing.assert_array_equal(ours.x, theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
    # A link stands for it, as a symbolic link would.
    write_link(tmp_path / "link.zarr", Location(f"s3://{bucket}/bags.zarr"))
    assert BagStore.open(tmp_path / "link.zarr").fingerprint == "one"
    assert open_finished(tmp_path / "link.zarr")["x"].shape == (N_BAG * SIZE, 2)


@pytest.mark.ci
def test_a_flipped_bit_on_the_way_is_read_again_and_one_in_the_store_is_told(s3, bucket):
    write_some(f"s3://{bucket}/bags.zarr")
    store = BagStore.open(f"s3://{bucket}/bags.zarr")
    good = store.read_block(0).x.copy()
    first = []

    def shard_once(method: str, path: str) -> bool:
        if method == "GET" and path.endswith("/x/c/0/0") and not first:
            first.append(path)
            return True
        return False

    with weather(s3, flip=1.0, only=shard_once) as (sky, _):
        np.testing.assert_array_equal(
            BagStore.open(f"s3://{bucket}/bags.zarr").read_block(0).x, good
        )
        assert sky.count("flip") == 1
    key = f"bags.zarr/{version_of(s3, bucket, 'bags.zarr')}/x/c/0/0"
    data = bytearray(objects(s3, bucket, key)[key])
    before = fingerprint_of(f"s3://{bucket}/bags.zarr")
    data[100] ^= 16
    request(s3, "PUT", f"/{bucket}/{key}", bytes(data))
    damaged = BagStore.open(f"s3://{bucket}/bags.zarr")  # the sizes are right
    with pytest.raises(StoreError, match=r"array x, chunk 0 .* is damaged") as caught:
        damaged.read_block(0)
    assert not isinstance(caught.value, StorageError)
    # Without reading a chunk, the stage that wrote it is known to have to run again.
    assert fingerprint_of(f"s3://{bucket}/bags.zarr") not in (before, "absent")


def fingerprint_of(url: str) -> str:
    from pipeline.storage.object_commit import fingerprint_objects

    return fingerprint_objects(Location(url))


@pytest.mark.ci
def test_a_store_that_lacks_something_or_is_away_is_not_opened(s3, bucket):
    write_some(f"s3://{bucket}/bags.zarr")
    head = f"/{bucket}/bags.zarr/{version_of(s3, bucket, 'bags.zarr')}"
    text = request(s3, "GET", f"{head}/x/zarr.json")[1]
    for name, data in (
        (f"{head}/x/c/1/0", b"short"),
        (f"{head}/weight/c/0", None),
        (f"{head}/x/zarr.json", text.replace(b"float32", b"float16")),
        (f"/{bucket}/bags.zarr/{MARKER}", b"{"),
    ):
        whole = request(s3, "GET", name)[1]
        request(s3, "DELETE", name) if data is None else request(s3, "PUT", name, data)
        with pytest.raises(StoreError, match="delete the store and ingest again"):
            BagStore.open(f"s3://{bucket}/bags.zarr")
        assert not is_current(f"s3://{bucket}/bags.zarr", FORMAT, VERSION, "one")
        request(s3, "PUT", name, whole)
    # What cannot be reached is not taken for absent.
    with weather(s3, error=1.0), pytest.raises(StorageError):
        is_current(f"s3://{bucket}/bags.zarr", FORMAT, VERSION, "one")
    with weather(s3, error=1.0, only=lambda method, path: "/x/c/" in path):
        store = BagStore.open(f"s3://{bucket}/bags.zarr")
        with pytest.raises(StorageError, match="cannot be read after"):
            store.read_block(0)


@pytest.mark.ci
def test_what_fails_before_the_pointer_leaves_the_old_store(s3, bucket):
    write_some(f"s3://{bucket}/bags.zarr", "one")
    old = objects(s3, bucket)
    broken = lambda method, path: method == "PUT" and "/weight/c/" in path  # noqa: E731
    with weather(s3, error=1.0, only=broken), pytest.raises(StorageError):
        write_some(f"s3://{bucket}/bags.zarr", "two", 2.0)
    assert objects(s3, bucket) == old  # nothing half-written stays
    pointer = lambda method, path: method == "PUT" and path.endswith(MARKER)  # noqa: E731
    with weather(s3, error=1.0, only=pointer), pytest.raises(StorageError):
        write_some(f"s3://{bucket}/bags.zarr", "two", 2.0)
    assert BagStore.open(f"s3://{bucket}/bags.zarr").fingerprint == "one"
    # The pointer was put, and the answer lost: the store is there.
    with weather(s3, late_reset=1.0, only=pointer), pytest.raises(StorageError):
        write_some(f"s3://{bucket}/bags.zarr", "two", 2.0)
    store = BagStore.open(f"s3://{bucket}/bags.zarr")
    assert store.fingerprint == "two"
    assert sum(1 for _ in store.blocks()) == store.n_block


@pytest.mark.ci
def test_a_writer_killed_before_the_pointer_leaves_the_old_store(s3, bucket):
    """SIGKILL while the pointer is on its way: the proxy holds it back until the writer is dead."""
    write_some(f"s3://{bucket}/bags.zarr", "one")
    reached, dead = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> bool:
        if method == "PUT" and path.endswith(MARKER):
            reached.set()
            dead.wait(60)
            return True
        return False

    code = (
        "from tests.pipeline.storage.test_storage import write_some\n"
        "import sys\n"
        "write_some(sys.argv[1], 'two', 2.0)\n"
    )
    with stormy(s3, Weather(reset=1.0, only=hold)) as through:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", through)
            writer = Command(f"s3://{bucket}/bags.zarr", code=code)
        assert reached.wait(60)
        writer.kill()
        dead.set()
    assert (
        len(objects(s3, bucket))
        > 2 * len(objects(s3, bucket, f"bags.zarr/{version_of(s3, bucket, 'bags.zarr')}/")) - 2
    )  # all of the new store is there, but the pointer
    assert BagStore.open(f"s3://{bucket}/bags.zarr").fingerprint == "one"
    write_some(f"s3://{bucket}/bags.zarr", "two", 2.0)
    assert BagStore.open(f"s3://{bucket}/bags.zarr").fingerprint == "two"


@pytest.mark.ci
def test_a_table_becomes_a_store_by_address(bucket, tmp_path, capsys):
    lines = ["bag,label,x"] + [f"b{k // 3},{k // 3 % 2},{k}" for k in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    command = ["bags", "import", str(tmp_path / "t.csv"), "--bag", "bag", "--label", "label"]
    out = f"s3://{bucket}/t.zarr"
    assert main([*command, "--out", out, "-q"]) == 0
    store = BagStore.open(out)
    assert sorted(np.concatenate([block.x for block in store.blocks()]).ravel()) == list(range(12))
    assert main(["bags", "info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_pixels"] == 12
    assert main(["bags", "info", f"s3://{bucket}/none.zarr"]) == 2
    assert capsys.readouterr().err.startswith(f"error: s3://{bucket}/none.zarr: no finished store")


def test_other_stores_that_fsspec_reaches():
    place = Location("memory://shelf/bags.zarr")
    write_some(place)
    assert BagStore.open("memory://shelf/bags.zarr").n_pix == N_BAG * SIZE
    assert place_of("memory://shelf/bags.zarr") == place
    assert fingerprint_file("memory://shelf/none.tif") == "absent"
    with pytest.raises(StoreError, match="no finished store"):
        open_finished("memory://shelf/none.zarr")
