"""Responses beside the pixels, and periods beside each other: none touches another."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.core.errors import StoreError, StoreInputError
from pipeline.store.bag_store import BagStore, NewBags, PixelRows, write_bags
from pipeline.store.block_source import StoreBlockSource
from pipeline.store.period_store import write_period
from pipeline.store.responses import read_responses, write_responses

SIZES = np.array([3, 5, 2, 7, 4, 6])
IDS = [f"A{k}" for k in range(6)]
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])


def rows(bag: np.ndarray, start: np.ndarray, stop: np.ndarray) -> PixelRows:
    spans = zip((OFFSETS[bag] + start).tolist(), (OFFSETS[bag] + stop).tolist(), strict=True)
    at = np.concatenate([np.arange(a, b) for a, b in spans])
    x = np.sin(at)[:, None].astype(np.float32)
    return PixelRows(x, 1.0 + at % 3, np.repeat(at[:, None], 2, 1).astype(float), at)


def make(path: Path, **options: object) -> BagStore:
    given = {"sizes": SIZES, "rows": rows, "y": np.arange(6.0), "ids": IDS, "covariates": ["wave"]}
    write_bags(path, NewBags(**{**given, **options}), seed=2, fingerprint="abc")
    return BagStore.open(path)


@pytest.fixture
def store(tmp_path: Path) -> BagStore:
    return make(tmp_path / "bags.zarr")


def files(path: Path) -> dict[str, bytes]:
    found = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    return {name: p.read_bytes() for name, p in found.items()}


def test_a_month_of_responses_comes_and_goes_without_a_pixel(store: BagStore) -> None:
    before = files(store.path)
    frame, about = read_responses(store.pixels.data)
    late = pd.DataFrame({"area": ["A3", "A1"], "period": "02", "source": "", "value": [9.0, 4.0]})
    late["training"] = True
    write_responses(store.pixels.data, pd.concat([frame.assign(period="01"), late]),
                    averages=about["averages"], fingerprint="abc")  # fmt: skip
    after = files(store.path)
    assert {name for name in after if after[name] != before[name]} == {"responses.parquet"}
    with pytest.raises(StoreError, match="has the periods 01, 02; choose one"):
        BagStore.open(store.path)
    with pytest.raises(StoreError, match="no responses of period '03', but of 01, 02"):
        BagStore.open(store.path, period="03")
    first, second = (BagStore.open(store.path, period=name) for name in ("01", "02"))
    np.testing.assert_array_equal(first.y, store.y)
    assert dict(zip(second.ids, second.y, strict=True))["A3"] == 9
    # A checkpoint, or thinned pixels, of one month are not those of the next.
    assert len({store.fingerprint, first.fingerprint, second.fingerprint}) == 3
    # Whoever has no row is predicted: the blocks hold the areas that have one.
    training = second.training
    assert sorted(training.ids) == ["A1", "A3"]
    assert np.isfinite(training.y).all()
    assert training.block_offsets[-1] == 2
    blocks = list(training.blocks())
    np.testing.assert_array_equal(np.concatenate([b.bag for b in blocks]), [0, 1])
    parts = np.split(np.concatenate([b.x for b in blocks]), training.offsets[1:-1])
    for name, x in zip(training.ids, parts, strict=True):
        pixels = np.arange(*OFFSETS[IDS.index(name) : IDS.index(name) + 2])
        np.testing.assert_array_equal(x[:, 0], np.sin(pixels).astype(np.float32))
    mean, sd = training.scaling()
    pixels = np.concatenate([b.x for b in blocks]).astype(np.longdouble)
    np.testing.assert_allclose(mean, pixels.mean(axis=0).astype(float), rtol=1e-12)
    np.testing.assert_allclose(sd, pixels.std(axis=0).astype(float), rtol=1e-12)


def test_a_fit_reads_what_has_a_response(tmp_path: Path) -> None:
    training = np.array([True, False, True, True, False, True])
    y = np.where(training, np.arange(6.0), np.nan)
    store = make(tmp_path / "s", y=y, training=training)
    source, view = StoreBlockSource(store), StoreBlockSource(store.training)
    assert source.n_bag == view.n_bag == 4
    np.testing.assert_array_equal(source.read_all().x, view.read_all().x)
    assert np.isfinite(source.read_all().y).all()
    with pytest.raises(ValueError, match="chooses 2 bags without a response, first A"):
        StoreBlockSource(store, np.ones(6, bool))


def test_rows_of_a_selection_are_those_of_its_blocks(store: BagStore) -> None:
    chosen = store.select(np.isin(store.ids, ["A0", "A2", "A3", "A5"]))
    together = chosen.read_rows(0, chosen.n_pix)
    np.testing.assert_array_equal(
        together.pixel, np.concatenate([chosen.read_pixel(k) for k in range(chosen.n_block)])
    )
    expected = [np.arange(*OFFSETS[IDS.index(n) : IDS.index(n) + 2]) for n in chosen.ids]
    np.testing.assert_array_equal(together.pixel, np.concatenate(expected))
    again = pickle.loads(pickle.dumps(chosen.with_responses(np.arange(4.0))))
    assert again.ids == chosen.ids
    assert again.y.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(again.read_block(0).x, chosen.read_block(0).x)


def test_weights_add_up_to_the_exposure_that_a_table_gives(tmp_path: Path) -> None:
    exposure = np.array([10.0, 20.0, np.nan, 40.0, 50.0, 60.0])
    store = make(tmp_path / "s", exposure=exposure, averaged=True, y=np.full(6, 2.0))
    given = exposure[[IDS.index(name) for name in store.ids]]
    for block in store.blocks():
        found = np.add.reduceat(block.weight, block.offsets[:-1])
        np.testing.assert_allclose(found, store.bag_weight[block.bag], rtol=1e-14)
        np.testing.assert_allclose(block.y, 2.0 * found, rtol=1e-14)
    known = np.isfinite(given)
    np.testing.assert_array_equal(store.known_exposure, known)
    np.testing.assert_array_equal(store.bag_weight[known], given[known])
    table = pd.read_parquet(store.path / "responses.parquet")
    assert table["value"].tolist() == [2.0] * 6  # as it was given


def test_two_rows_of_an_area_and_unknown_areas_are_refused(store: BagStore) -> None:
    frame, _ = read_responses(store.pixels.data)
    with pytest.raises(StoreInputError, match="two responses of area A0 in period ''"):
        write_responses(store.pixels.data, pd.concat([frame, frame]))
    both = pd.concat([frame.assign(source="hospital"), frame.assign(source="survey")])
    write_responses(store.pixels.data, both)
    with pytest.raises(StoreError, match=r"several sources \(hospital, survey\); keep one"):
        BagStore.open(store.path)
    write_responses(store.pixels.data, frame.replace({"A2": "Z"}))
    with pytest.raises(StoreError, match="a response of Z, an area that the pixels do not have"):
        BagStore.open(store.path)
    (store.path / "responses.parquet").unlink()
    with pytest.raises(StoreError, match="the responses of the store are missing"):
        BagStore.open(store.path)


def move(store: BagStore, period: str, shift: float, *, people: bool = False) -> None:
    """Write a covariate of a period: the number of the pixel, shifted; people twice as many."""
    pixels = store.pixels

    def moving(
        bag: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        first = pixels.offsets[bag]
        spans = zip((first + start).tolist(), (first + stop).tolist(), strict=True)
        found = [pixels.rows(a, b) for a, b in spans]
        at = np.concatenate([each.pixel for each in found])
        weight = 2.0 * np.concatenate([each.weight for each in found])
        return (at[:, None] + shift).astype(np.float32), weight if people else None

    write_period(pixels, period, ["rain"], ["mm"], moving, has_weight=people)


def test_a_period_is_written_without_touching_another(store: BagStore) -> None:
    before = files(store.path)
    move(store, "202401", 100.0)
    first = files(store.path)
    assert {name: first[name] for name in before} == before
    move(store, "202402", 200.0, people=True)
    second = files(store.path)
    assert {name: second[name] for name in first} == first
    still = BagStore.open(store.path)
    frame, _ = read_responses(still.pixels.data)
    months = [frame.assign(period=name) for name in ("202401", "202402")]
    write_responses(still.pixels.data, pd.concat(months), fingerprint="abc")
    for name, shift, factor in (("202401", 100.0, 1.0), ("202402", 200.0, 2.0)):
        month = BagStore.open(store.path, period=name)
        assert month.covariates == ("wave", "rain")
        assert month.units == ("", "mm")
        rows_of, own = month.read_rows(0, month.n_pix), store.read_rows(0, store.n_pix)
        np.testing.assert_array_equal(rows_of.x[:, :1], own.x)
        np.testing.assert_array_equal(rows_of.x[:, 1], own.pixel + np.float32(shift))
        np.testing.assert_array_equal(rows_of.weight, factor * own.weight)
        np.testing.assert_allclose(month.bag_weight, factor * store.bag_weight, rtol=1e-15)
        mean, _ = month.scaling()
        np.testing.assert_allclose(mean, rows_of.x.astype(float).mean(axis=0), rtol=1e-6)
        again = pickle.loads(pickle.dumps(month))
        np.testing.assert_array_equal(again.read_block(0).x, month.read_block(0).x)


def test_a_period_that_is_not_there_or_of_other_pixels_is_refused(store: BagStore) -> None:
    move(store, "202401", 1.0)
    with pytest.raises(StoreError, match="nothing is known of period 202402, but of 202401"):
        BagStore.open(store.path, period="202402")
    marker = store.path / "periods/202401/complete.json"
    marker.write_text(marker.read_text().replace('"abc"', '"other"'))
    with pytest.raises(StoreError, match="of other pixels than the store's"):
        BagStore.open(store.path, period="202401")
    with pytest.raises(StoreInputError, match="give a label of letters"):
        move(store, "../x", 1.0)
