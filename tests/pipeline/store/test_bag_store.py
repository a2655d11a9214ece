"""The bag store: what goes in comes out, in random order, whole or not at all."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from models.core.block import BagBlock, cut_blocks
from pipeline.core.errors import StoreError, StoreInputError
from pipeline.storage.local_commit import MARKER, is_current, remove_abandoned
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, StoreLayout, write_bags
from pipeline.store.bag_writer import FORMAT, VERSION, shard_ranges
from pipeline.store.moments import merge_moments, moments_of

ROOT = Path(__file__).parents[3]


class Country:
    """Bags in memory, in the input's order: the second route to whatever a store says."""

    def __init__(self, n_bag: int = 30, n_feat: int = 3, seed: int = 0, largest: int = 60) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = rng.integers(1, largest, n_bag)
        self.sizes[n_bag // 2] = 5 * largest
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        n_pix = int(self.offsets[-1])
        self.all = PixelRows(
            (1e4 + rng.normal(size=(n_pix, n_feat))).astype(np.float32),
            rng.gamma(1.0, size=n_pix),
            rng.normal(size=(n_pix, 2)),
            np.arange(n_pix, dtype=np.int64),
        )
        self.y = rng.poisson(10.0, n_bag).astype(float)
        self.ids = [f"Ambato-{k} é" for k in range(n_bag)]

    def rows(self, bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        base = self.offsets[bag]
        return PixelRows.join(
            [self.all.cut(b + i, b + j) for b, i, j in zip(base, start, stop, strict=True)]
        )

    def write(self, path: Path, **options: object) -> None:
        bags: dict = {
            "sizes": self.sizes,
            "rows": self.rows,
            "y": self.y,
            "ids": self.ids,
            "covariates": [f"c{k}" for k in range(self.all.x.shape[1])],
        }
        layout = {"chunk_pixels": 64, "shard_pixels": 256, "block_pixels": 128}
        how = {"seed": 3, "fingerprint": "abc"}
        for name, value in options.items():
            fields = (NewBags, bags), (StoreLayout, layout)
            group = next((g for of, g in fields if name in of.__dataclass_fields__), how)
            group[name] = value
        write_bags(path, NewBags(**bags), layout=StoreLayout(**layout), **how)


@pytest.fixture
def country() -> Country:
    return Country()


@pytest.fixture
def store(tmp_path: Path, country: Country) -> BagStore:
    country.write(tmp_path / "bags.zarr")
    return BagStore.open(tmp_path / "bags.zarr")


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def leftovers(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def test_every_bag_comes_back_as_it_went_in(store: BagStore, country: Country) -> None:
    seen = []
    for block in store.blocks():
        for k, bag in enumerate(block.bag):
            source = country.ids.index(store.ids[bag])
            seen.append(source)
            inside = slice(block.offsets[k], block.offsets[k + 1])
            there = slice(country.offsets[source], country.offsets[source + 1])
            np.testing.assert_array_equal(block.x[inside], country.all.x[there])
            np.testing.assert_array_equal(block.weight[inside], country.all.weight[there])
            assert block.coords is not None
            np.testing.assert_array_equal(block.coords[inside], country.all.coords[there])
            assert block.y[k] == country.y[source]
            assert store.bag_weight[bag] == pytest.approx(country.all.weight[there].sum())
    assert sorted(seen) == list(range(30))
    assert seen != sorted(seen)
    assert block.x.dtype == np.float32
    with pytest.raises(IndexError, match="of a store of"):
        store.read_block(store.n_block)
    for array in (block.x, block.weight, block.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    pixels = np.concatenate([store.read_pixel(i) for i in range(store.n_block)])
    assert sorted(pixels) == list(range(store.n_pix))
    source = country.ids.index(store.ids[0])
    expected = np.arange(country.offsets[source], country.offsets[source + 1])
    np.testing.assert_array_equal(pixels[: len(expected)], expected)


def test_order_is_random_but_seeded(tmp_path: Path, country: Country) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        country.write(tmp_path / name, seed=seed)
    ids = [BagStore.open(tmp_path / name).ids for name in "abc"]
    assert ids[0] == ids[1]
    assert ids[0] != ids[2]
    assert sorted(ids[0]) == sorted(ids[2])


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 300), st.integers(1, 9)
)
def test_blocks_hold_whole_bags_and_about_the_same_pixels(
    sizes: list[int], target: int, most: int
) -> None:
    cuts = cut_blocks(np.array(sizes), target, most)
    assert cuts[0] == 0
    assert cuts[-1] == len(sizes)
    for first, last in itertools.pairwise(cuts):
        inside = sizes[first:last]
        assert 1 <= len(inside) <= most
        if max(inside) >= target:
            assert len(inside) == 1
        assert len(inside) == 1 or sum(inside) <= 1.5 * target + 1
        follower = sizes[last] if last < len(sizes) else target
        if len(inside) < most and follower < target:
            assert sum(inside) + follower - target > target - sum(inside) or sum(inside) >= target


def test_scaling_of_any_bags_equals_a_pass_over_their_pixels(
    store: BagStore, country: Country
) -> None:
    chosen = np.random.default_rng(1).random(store.n_bag) < 0.6
    for mask in (None, chosen):
        inside = np.ones(store.n_bag, bool) if mask is None else mask
        pixels = np.repeat(inside, store.sizes)
        x = np.concatenate([b.x for b in store.blocks()])[pixels].astype(np.longdouble)
        mean, sd = store.scaling(mask)
        np.testing.assert_allclose(mean, x.mean(axis=0).astype(float), rtol=1e-14)
        np.testing.assert_allclose(sd, x.std(axis=0).astype(float), rtol=1e-11)
    assert country.all.x.mean() > 9000  # far from zero: the naive sum of squares would lose digits
    mean, sd = store.scaling()
    assert store.attrs["scaling"] == {"mean": mean.tolist(), "sd": sd.tolist()}
    for wrong in (np.ones(3, bool), np.ones(30), np.zeros(30, bool)):
        with pytest.raises(ValueError, match=r"give \(30,\) bool|choose at least one"):
            store.scaling(wrong)


def test_moments_keep_digits_where_sums_of_squares_do_not() -> None:
    x = (np.float64(2**40) + np.arange(6.0))[:, None]
    parts = np.stack([moments_of(x[:2]), moments_of(x[2:])])
    mean, spread = merge_moments(np.array([2, 4]), parts)
    assert spread[0] == np.var(np.arange(6.0)) * 6
    assert mean[0] == 2**40 + 2.5
    assert abs(np.sum(x**2) - np.sum(x) ** 2 / 6 - spread[0]) > 1.0


def test_constant_covariate_has_deviation_one(tmp_path: Path, country: Country) -> None:
    country.all.x[:, 1] = np.float32(0.1)
    country.write(tmp_path / "s")
    mean, sd = BagStore.open(tmp_path / "s").scaling()
    assert sd[1] == 1.0
    assert mean[1] == np.float32(0.1)


def test_tasks_touch_only_their_own_shard(tmp_path: Path, country: Country) -> None:
    spans = []

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        spans.append(int((stop - start).sum()))
        return country.rows(bag, start, stop)

    country.write(tmp_path / "s", rows=rows)
    shards = [p for p in (tmp_path / "s/x/c").rglob("*") if p.is_file()]
    assert sorted(spans, reverse=True) == sorted(
        (b - a for a, b in shard_ranges(int(country.sizes.sum()), 256)), reverse=True
    )
    assert len(shards) == len(spans)


def test_the_number_of_threads_changes_nothing(tmp_path: Path, country: Country) -> None:
    country.write(tmp_path / "one", workers=1)
    country.write(tmp_path / "four", workers=4)
    one, four = contents(tmp_path / "one"), contents(tmp_path / "four")
    assert one.keys() == four.keys()
    assert [k for k in one if one[k] != four[k]] == []


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, country: Country) -> None:
    calls = itertools.count()

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        if next(calls) == 2:
            found = "disk on fire"
            raise OSError(found)
        return country.rows(bag, start, stop)

    with pytest.raises(OSError, match="disk on fire"):
        country.write(tmp_path / "s", rows=rows, workers=1)
    assert leftovers(tmp_path) == []
    with pytest.raises(StoreError, match="no store here"):
        BagStore.open(tmp_path / "s")


def test_a_failure_keeps_the_store_that_stood_there(tmp_path: Path, country: Country) -> None:
    country.write(tmp_path / "s")
    before = contents(tmp_path / "s")

    def rows(*_: np.ndarray) -> PixelRows:
        found = "no"
        raise OSError(found)

    with pytest.raises(OSError, match="no"):
        country.write(tmp_path / "s", rows=rows, fingerprint="new")
    assert contents(tmp_path / "s") == before
    assert leftovers(tmp_path) == ["s"]
    country.write(tmp_path / "s", fingerprint="other")
    assert BagStore.open(tmp_path / "s").fingerprint == "other"
    assert leftovers(tmp_path) == ["s"]


@pytest.mark.ci
def test_a_killed_writer_leaves_nothing_that_opens(tmp_path: Path, country: Country) -> None:
    program = textwrap.dedent(
        """
        import sys, time
        import numpy as np
        from pathlib import Path
        from pipeline.store.bag_store import NewBags, PixelRows, StoreLayout, write_bags

        def rows(bag, start, stop):
            n = int((stop - start).sum())
            if sys.stdin.readline() == "":
                time.sleep(60)
            print("shard", flush=True)
            return PixelRows(np.ones((n, 2), "f4"), np.ones(n), np.ones((n, 2)), np.arange(n))

        bags = NewBags(sizes=np.full(20, 50), rows=rows, y=np.ones(20),
                       ids=[str(k) for k in range(20)], covariates=["a", "b"])
        write_bags(Path(sys.argv[1]), bags, workers=1, fingerprint="f",
                   layout=StoreLayout(chunk_pixels=64, shard_pixels=128))
        """
    )
    path = tmp_path / "s"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "shard\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    partial = leftovers(tmp_path)
    assert len(partial) == 1
    assert partial[0].startswith(".s.partial-")
    assert any((tmp_path / partial[0] / "x").rglob("0"))
    for place in (path, tmp_path / partial[0]):
        with pytest.raises(StoreError, match=r"no store here|never finished"):
            BagStore.open(place)
    country.write(path)  # the next writer removes what the dead one left
    assert leftovers(tmp_path) == ["s"]
    assert BagStore.open(path).n_bag == 30


def test_the_work_of_a_living_writer_is_left_alone(tmp_path: Path, country: Country) -> None:
    seen: list[list[str]] = []

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        assert remove_abandoned(tmp_path / "s") == 0
        seen.append(leftovers(tmp_path))
        return country.rows(bag, start, stop)

    country.write(tmp_path / "s", rows=rows, workers=1)
    assert all(len(names) == 1 and names[0].startswith(".s.partial-") for names in seen)


def test_a_flipped_byte_is_found_and_named(store: BagStore) -> None:
    path = Path(store.path)

    def flipped(file: Path, at: int, says: str) -> None:
        whole = file.read_bytes()
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(StoreError, match=says):
            list(BagStore.open(path).blocks())
        file.write_bytes(whole)

    for name in ("x", "weight", "coords", "pixel"):
        shard = sorted(p for p in (path / name / "c").rglob("*") if p.is_file())[1]
        flipped(shard, 100, rf"array {name}, chunk 4 \(rows 256:320\) is damaged")
    for name, says in (
        ("bag_weight/c/0", "array bag_weight, chunk 0"),
        ("zarr.json", "zarr.json is damaged"),
        ("responses.parquet", "responses.parquet: damaged"),
    ):
        flipped(path / name, 20, says)


def test_a_missing_or_cut_shard_and_a_missing_marker_are_found(
    tmp_path: Path, country: Country
) -> None:
    country.write(tmp_path / "s")
    shard = tmp_path / "s/x/c/1/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-50])
    with pytest.raises(StoreError, match=r"x/c/1/0 has \d+ bytes instead of"):
        BagStore.open(tmp_path / "s")
    shard.unlink()
    with pytest.raises(StoreError, match="x/c/1/0 is missing"):
        BagStore.open(tmp_path / "s")
    assert not is_current(tmp_path / "s", FORMAT, VERSION, "abc")
    shard.write_bytes(whole)
    opened = BagStore.open(tmp_path / "s")
    (tmp_path / "s/weight/c/0").unlink()
    with pytest.raises(StoreError, match="weight lacks a chunk in pixels 0:256"):
        opened.read_block(0)
    (tmp_path / "s" / MARKER).unlink()
    with pytest.raises(StoreError, match="never finished"):
        BagStore.open(tmp_path / "s")


def test_another_format_or_version_is_refused(tmp_path: Path, country: Country) -> None:
    country.write(tmp_path / "s")
    marker = tmp_path / "s" / MARKER
    marker.write_text(marker.read_text().replace('"version": 3', '"version": 7'))
    with pytest.raises(StoreError, match="version 7, expected disagg-bags version 3"):
        BagStore.open(tmp_path / "s")


def test_a_handle_is_pickled_by_its_path_and_shared_by_threads(
    store: BagStore, country: Country
) -> None:
    raw = pickle.dumps(store)
    assert len(raw) < 500
    again = pickle.loads(raw)
    again.pixels.cache_mb = 0
    blocks: dict[int, BagBlock] = {}

    def read(first: int) -> None:
        for i in range(first, again.n_block, 3):
            blocks[i] = again.read_block(i)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    x = np.concatenate([blocks[i].x for i in range(store.n_block)])
    np.testing.assert_array_equal(x, np.concatenate([b.x for b in store.blocks()]))
    assert x.shape == (country.sizes.sum(), 3)


def test_the_format_is_what_the_specification_says(store: BagStore) -> None:
    """Another reader: plain zarr, by ``docs/bag-store.md`` alone."""
    group = zarr.open_group(store.path, mode="r")
    assert group.attrs["format"] == "disagg-bags"
    assert group.attrs["version"] == 3
    dtypes = {
        **{"x": "float32", "weight": "float64", "coords": "float64", "pixel": "int64"},
        **{"offsets": "int64", "block_offsets": "int64", "bag_weight": "float64"},
        **{"moments": "float64", "id_bytes": "uint8", "id_offsets": "int64"},
    }
    shapes = {}
    specification = (ROOT / "docs/bag-store.md").read_text(encoding="utf-8")
    for name, dtype in dtypes.items():
        array: Any = group[name]
        assert array.dtype == dtype
        assert f"| `{name}` |" in specification
        codecs = array.metadata.to_dict()["codecs"]
        inner = codecs[0]["configuration"]["codecs"] if array.shards else codecs
        assert inner[-1]["name"] == "crc32c"
        shapes[name] = array.shape
    n_pix = store.n_pix
    assert shapes["moments"] == (30, 2, 3)
    assert [shapes[k] for k in ("x", "coords", "pixel")] == [(n_pix, 3), (n_pix, 2), (n_pix,)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sizes": np.zeros(30, int)}, "bag 0 has no pixel"),
        ({"sizes": np.zeros(0, int), "y": np.zeros(0), "ids": []}, "sizes has shape"),
        ({"y": np.full(30, np.nan)}, "y of bag 0 is not finite"),
        ({"y": np.ones(4)}, "responses"),
        ({"ids": ["a"] * 30}, "same id"),
        ({"ids": ["", *map(str, range(29))]}, "empty id"),
        ({"covariates": [], "units": ["m"]}, "0 covariates and 1 units"),
        ({"units": ["m"]}, "1 units"),
        ({"shard_pixels": 100}, "not a multiple of chunk_pixels 64"),
    ],
)
def test_unusable_arrays_are_refused(
    tmp_path: Path, country: Country, change: dict, says: str
) -> None:
    with pytest.raises(StoreInputError, match=says):
        country.write(tmp_path / "s", **change)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("value", "says"), [(np.nan, "x has NaN"), (-1.0, "weight has")])
def test_unusable_pixels_are_refused(
    tmp_path: Path, country: Country, value: float, says: str
) -> None:
    (country.all.x[:, 0] if np.isnan(value) else country.all.weight)[7] = value
    with pytest.raises(StoreInputError, match=says):
        country.write(tmp_path / "s")
    assert leftovers(tmp_path) == []


def test_the_worked_example_of_the_specification(tmp_path: Path) -> None:
    rows = PixelRows(
        np.array([[2.0], [2.0], [5.0], [0.5], [1.5]], np.float32),
        np.array([30.0, 25.0, 0.5, 10.0, 20.0]),
        np.full((5, 2), np.nan),
        np.array([4, 5, 17, 17, 18]),
    )
    base = np.array([0, 3])

    def given(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        spans = zip(base[bag] + start, base[bag] + stop, strict=True)
        return PixelRows.join([rows.cut(i, j) for i, j in spans])

    for seed in range(100):
        store = BagStore.create(
            tmp_path / "s",
            NewBags(
                sizes=np.array([3, 2]),
                rows=given,
                y=np.array([12.0, 7.0]),
                ids=["A", "Bé"],
                covariates=["c"],
            ),
            seed=seed,
        )
        if store.ids == ("Bé", "A"):
            break
    assert (store.path / "coords/c/0/0").is_file()  # all of it is the fill value
    group: Any = zarr.open_group(store.path, mode="r")
    assert group["offsets"][:].tolist() == [0, 2, 5]
    assert group["block_offsets"][:].tolist() == [0, 2]
    assert store.y.tolist() == [7.0, 12.0]
    table = pd.read_parquet(store.path / "responses.parquet")
    assert table["area"].tolist() == ["A", "Bé"]
    assert table["value"].tolist() == [12.0, 7.0]
    assert table["training"].all()
    assert group["bag_weight"][:].tolist() == [30.0, 55.5]
    assert group["x"][:, 0].tolist() == [0.5, 1.5, 2.0, 2.0, 5.0]
    assert group["pixel"][:].tolist() == [17, 18, 4, 5, 17]
    assert group["id_bytes"][:].tobytes() == b"B\xc3\xa9A"
    assert group["moments"][:].tolist() == [[[1.0], [0.5]], [[3.0], [6.0]]]
    for bags, mean, variance in ((store.y == 12, 3.0, 2.0), (None, 2.2, 2.26)):
        scaling = store.scaling(bags)
        assert scaling[0][0] == pytest.approx(mean, rel=1e-15)
        assert scaling[1][0] ** 2 == pytest.approx(variance, rel=1e-14)


def test_a_shard_read_by_hand_as_the_specification_says(store: BagStore, country: Country) -> None:
    raw = (store.path / "weight/c/1").read_bytes()
    n_chunk = 256 // 64
    index = np.frombuffer(raw[-4 - 16 * n_chunk : -4], "<u8").reshape(n_chunk, 2)
    start, length = (int(v) for v in index[2])
    assert length == 64 * 8 + 4
    by_hand = np.frombuffer(raw[start : start + length - 4], "<f8")
    np.testing.assert_array_equal(by_hand, store.read_rows(256 + 128, 256 + 192).weight)
    assert country.all.weight.min() > 0


def test_a_store_beyond_the_cache_is_read_block_by_block(tmp_path: Path) -> None:
    country = Country(n_bag=60)
    country.write(tmp_path / "s")
    whole, small = BagStore(tmp_path / "s"), BagStore(tmp_path / "s", cache_mb=0.01)
    read, pixels = [], small.pixels
    real = pixels._read

    def counting(name: str, start: int, stop: int) -> np.ndarray:
        read.append((name, stop - start))
        return real(name, start, stop)

    pixels._read = counting  # type: ignore[method-assign, assignment]
    order = np.random.default_rng(0).permutation(small.n_block)
    for number in [*order, *order]:
        got, expected = small.read_block(int(number)), whole.read_block(int(number))
        for name in ("x", "weight", "coords", "offsets", "y"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
        held = sum(rows.n_byte for rows in pixels._cache.values())
        assert held == pixels._held
        assert held <= 1e4 or len(pixels._cache) <= 2
    # Each of the two passes read each pixel once, not the shard around it.
    assert sum(n for name, n in read if name == "x") <= 2 * small.n_pix
    # What is kept is not read again.
    n_read = len(read)
    small.read_block(int(order[-1]))
    assert len(read) == n_read
