"""Pixels that represent an area: exposure is kept, sums are unbiased, bags stay where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.store.bag_store import BagStore, NewBags, PixelRows, write_bags
from pipeline.store.thinning import thin, thinned_store

SIZES = np.array([5, 300, 4000, 40, 1])


def pixels(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features that vary smoothly, weights of which a third are 0, offsets."""
    rng = np.random.default_rng(seed)
    n = int(SIZES.sum())
    z = np.cumsum(rng.standard_normal((n, 3)), axis=0)
    z /= z.std(axis=0)
    weight = rng.gamma(0.3, 1.0, n) * (rng.random(n) > 0.3)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    weight[offsets[3] : offsets[4]] = 0.0  # an area of nobody
    return z, weight, offsets


def by_bag(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, offsets[:-1])


def test_the_exposure_of_each_area_stays() -> None:
    z, weight, offsets = pixels()
    found = thin(z, weight, offsets, 100, np.random.default_rng(1))
    assert by_bag(found.weight, found.offsets) == pytest.approx(by_bag(weight, offsets), rel=1e-13)
    kept = np.diff(found.offsets)
    assert (kept <= np.minimum(SIZES, 100)).all()
    assert kept[[0, 3, 4]].tolist() == [5, 40, 1]  # small areas stay as they are
    assert kept[2] == 100
    assert (np.diff(found.pixel) > 0).all()  # each once, in order
    small = slice(0, 5)
    assert (found.weight[small] == weight[small]).all()


@pytest.mark.ci
def test_sums_over_an_area_are_unbiased_and_vary_less_than_those_of_a_simple_sample() -> None:
    z, weight, offsets = pixels()
    rate = np.exp(0.5 * z[:, 0] + 0.3 * z[:, 1])
    area, n, repeats = slice(*offsets[2:4].tolist()), 50, 300
    p, r = weight[area], rate[area]
    true = float(p @ r)
    thinned, simple = [], []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        found = thin(z[area], p, np.array([0, p.size]), n, rng)
        thinned.append(found.weight @ r[found.pixel])
        simple.append(p.sum() * r[rng.choice(p.size, n, p=p / p.sum())].mean())
    error = np.std(thinned) / np.sqrt(repeats)
    assert abs(np.mean(thinned) - true) < 4 * error
    assert np.std(thinned) < 0.5 * np.std(simple)


def test_one_pixel_of_an_area_is_drawn_in_proportion_to_its_weight() -> None:
    weight = np.array([1.0, 0.0, 3.0, 6.0])
    z, offsets = np.arange(4.0)[:, None], np.array([0, 4])
    drawn = [
        int(thin(z, weight, offsets, 1, np.random.default_rng(seed)).pixel[0])
        for seed in range(4000)
    ]
    share = np.bincount(drawn, minlength=4) / 4000
    assert share == pytest.approx(weight / weight.sum(), abs=0.03)
    assert share[1] == 0


def test_an_area_of_equal_pixels_is_cut_into_equal_parts() -> None:
    z, weight = np.arange(64.0)[:, None], np.ones(64)
    found = thin(z, weight, np.array([0, 64]), 8, np.random.default_rng(0))
    assert (found.pixel // 8).tolist() == list(range(8))  # one of each eight
    assert (found.weight == 8).all()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    z, weight, offsets = pixels()

    def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
        spans = [
            np.arange(offsets[b] + s, offsets[b] + e)
            for b, s, e in zip(bag, start, stop, strict=True)
        ]
        at = np.concatenate(spans)
        return PixelRows(z[at].astype(np.float32), weight[at], 10 * z[at, :2], at)

    path = tmp_path_factory.mktemp("store") / "bags.zarr"
    write_bags(
        path,
        NewBags(
            sizes=SIZES, rows=rows, y=np.arange(5.0), ids=list("abcde"), covariates=list("xyz")
        ),
        seed=3,
        fingerprint="f",
    )
    return BagStore.open(path)


def test_a_thinned_store_has_the_same_bags_in_the_same_order(
    store: BagStore, tmp_path: Path
) -> None:
    thinned = thinned_store(store, tmp_path / "thinned.zarr", 100, seed=3)
    assert thinned.ids == store.ids
    assert (thinned.y == store.y).all()
    assert thinned.bag_weight == pytest.approx(store.bag_weight, rel=1e-13)
    assert thinned.n_pix < store.n_pix
    whole = store.read_rows(0, store.n_pix).weight.astype(np.float64)
    squares = np.add.reduceat(whole**2, store.offsets[:-1])
    assert (thinned.all_sizes == store.sizes).all()
    # Its pixels are pixels of the same bag.
    for block in range(thinned.n_block):
        bags = thinned.read_block(block)
        assert bags.squares == pytest.approx(squares[bags.bag])  # of all, as noise of pixels needs
        pixel = np.split(thinned.read_pixel(block), bags.offsets[1:-1])
        for bag, mine in zip(bags.bag, pixel, strict=True):
            place = slice(int(store.offsets[bag]), int(store.offsets[bag + 1]))
            assert np.isin(mine, store.read_rows(place.start, place.stop).pixel).all()
    keep = np.array([True, True, False, True, True])
    for one, other in zip(thinned.scaling(keep), store.scaling(keep), strict=True):
        assert (one == other).all()  # of all pixels, not of those chosen


def test_a_thinned_store_is_written_once_and_the_same_again(
    store: BagStore, tmp_path: Path
) -> None:
    path = tmp_path / "thinned.zarr"
    first = thinned_store(store, path, 100, seed=3)
    again = thinned_store(store, path, 100, seed=3)
    other = thinned_store(store, tmp_path / "other.zarr", 100, seed=3)
    assert first.fingerprint == again.fingerprint == other.fingerprint
    assert (first.read_rows(0, first.n_pix).pixel == other.read_rows(0, other.n_pix).pixel).all()
    replaced = thinned_store(store, path, 50, seed=3)
    assert replaced.fingerprint != first.fingerprint
    assert int(replaced.sizes.max()) == 50


def test_a_store_of_small_areas_is_not_thinned(store: BagStore, tmp_path: Path) -> None:
    for cap in ("all", 4000):
        assert thinned_store(store, tmp_path / "no.zarr", cap, seed=3) is store
    assert not (tmp_path / "no.zarr").exists()


def test_a_store_without_a_bag_stays_as_it_is(tmp_path: Path) -> None:
    """Such as a month without any count."""
    rows = PixelRows(np.zeros((4, 1), "f4"), np.ones(4), np.zeros((4, 2)), np.arange(4))
    bags = NewBags(sizes=np.array([4]), rows=lambda *_: rows, y=np.ones(1), ids=["a"],
                   covariates=["x"])  # fmt: skip
    write_bags(tmp_path / "bags.zarr", bags)
    empty = BagStore(tmp_path / "bags.zarr").select(np.zeros(1, bool))
    assert thinned_store(empty, tmp_path / "thinned.zarr", 2, 1) is empty
