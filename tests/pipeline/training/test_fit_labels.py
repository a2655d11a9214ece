"""Classifiers from a store: threads, a Dask cluster and resumed fits give the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import models
from models.core.errors import BagsError
from pipeline.store.bag_store import BagStore, StoreLayout
from pipeline.store.block_source import StoreBlockSource
from pipeline.training.fit import fit
from pipeline.training.stage import _told
from tests.pipeline.stores import write_store

# One fit each: fits within fits have tests of their own below.
ONE = {"variance": 1.0, "lengthscale": 1.0, "calibrate": "none"}
SUM = {**ONE, "aggregate": "sum"}
ONE_PSI = {**ONE, "start": 0.5}
MAKE = {
    "pooled": lambda **k: models.PooledGP(n_inducing=5, n_starts=1, max_epochs=4, **k),
    "psi": lambda **k: models.PsiVGPMIL(n_inducing=8, max_epochs=6, tolerance=1e-12, **ONE_PSI | k),
    "psi-svi": lambda **k: models.PsiVGPMILSVI(
        n_inducing=8, max_epochs=6, batch_bags=8, **ONE_PSI | k
    ),
    "vwsgp": lambda **k: models.VWSGP(n_inducing=8, max_epochs=6, tolerance=1e-12, **SUM | k),
    "vwsgp-svi": lambda **k: models.VWSGPSVI(n_inducing=8, max_epochs=6, batch_bags=8, **SUM | k),
    "gpmil-s": lambda **k: models.GPMILS(n_inducing=5, max_epochs=3, batch_bags=8, **k),
    "blrt": lambda **k: models.BLRT(n_trees=12, **k),
}


@pytest.fixture(params=MAKE)
def make(request: pytest.FixtureRequest) -> Any:
    return MAKE[request.param]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BagStore:
    return _store(tmp_path_factory.mktemp("labels") / "bags.zarr")


def _store(path: Path, labels: Any = None) -> BagStore:
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 12, 40)
    base = np.concatenate([[0], np.cumsum(sizes)])
    x = rng.normal(size=(base[-1], 3)).astype(np.float32)
    y = np.maximum.reduceat((x[:, 0] > 1.2).astype(float), base[:-1])
    layout = StoreLayout(block_pixels=40, chunk_pixels=32, shard_pixels=64)
    return write_store(path, sizes, x, y if labels is None else labels(y), layout=layout)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _assert_same(one: Any, other: Any, store: BagStore) -> None:
    for name, value in one.state_.params.items():
        np.testing.assert_array_equal(value, other.state_.params[name], err_msg=name)
    assert [h["bound"] for h in one.history_] == [h["bound"] for h in other.history_]
    block = store.read_block(0)
    np.testing.assert_array_equal(one.predict_bags(block).mean, other.predict_bags(block).mean)


@pytest.mark.ci
def test_a_cluster_gives_what_threads_give(make: Any, store: BagStore, client: Client) -> None:
    here, there = make(), make()
    fit(here, store, n_thread=3)
    fit(there, store, client)
    _assert_same(here, there, store)


class Stop:
    """Progress that interrupts the fit in the middle of an epoch."""

    def __init__(self, after: float) -> None:
        self.after, self.done = after, 0.0
        self.logs: list[str] = []

    @contextmanager
    def task(self, name: str, total: float | None = None) -> Iterator[Stop]:
        yield self

    def advance(self, n: float = 1, **_: Any) -> None:
        self.done += n
        if self.done > self.after:
            raise KeyboardInterrupt

    def log(self, message: str) -> None:
        self.logs.append(message)


def test_an_interrupted_fit_goes_on_as_if_nothing_had_been(
    make: Any, store: BagStore, tmp_path: Path
) -> None:
    if make().sweep == "single":
        return  # it fits itself
    whole, parts = make(), make()
    fit(whole, store)
    with pytest.raises(KeyboardInterrupt):
        fit(parts, store, checkpoint=tmp_path, progress=Stop(2.5))
    again = Stop(np.inf)
    fit(parts, store, checkpoint=tmp_path, progress=again)
    assert any("resumes from the checkpoint of epoch" in line for line in again.logs)
    _assert_same(whole, parts, store)


def test_held_out_bags_change_nothing(make: Any, store: BagStore, tmp_path: Path) -> None:
    keep = np.arange(store.n_bag) % 3 > 0

    def flip(y: np.ndarray) -> np.ndarray:
        out = y.copy()
        ids = [int(i) for i, kept in zip(store.ids, keep, strict=True) if not kept]
        out[ids] = 1 - out[ids]
        return out

    other = _store(tmp_path / "flipped", flip)
    assert (other.y != store.y).sum() == (~keep).sum()
    one, two = make(), make()
    fit(one, store, bags=keep)
    fit(two, other, bags=keep)
    _assert_same(one, two, store)


def test_a_model_of_one_piece_sees_all_training_bags_at_once(store: BagStore) -> None:
    keep = np.arange(store.n_bag) % 4 > 0
    whole = StoreBlockSource(store, keep).read_all()
    assert whole.n_bag == keep.sum()
    np.testing.assert_array_equal(whole.y, store.y[keep])
    np.testing.assert_array_equal(np.diff(whole.offsets), store.sizes[keep])
    rows = [store.read_rows(*store.offsets[a : a + 2]).x for a in np.flatnonzero(keep)]
    np.testing.assert_array_equal(whole.x, np.concatenate(rows))


def test_labels_are_checked_before_anything_is_computed(make: Any, tmp_path: Path) -> None:
    for labels, says in (
        (lambda y: y + 1.0, "classifier needs labels 0 and 1"),
        (lambda y: np.zeros_like(y), "all labels are 0"),
    ):
        wrong = _store(tmp_path / says[:3], labels)
        with pytest.raises(BagsError, match=says):
            fit(make(), wrong, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def _chosen(model: Any) -> list[Any]:
    return [(row["settings"], row["chosen"]) for row in model.selection_]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("psi", {"start": "auto", "calibrate": "cv", "max_epochs": 2}),
        ("vwsgp", {"calibrate": "cv", "max_epochs": 2}),
        ("blrt", {"tune": True, "calibrate": "cv"}),
    ],
)
def test_a_store_is_recalibrated_and_tuned_as_memory_is(
    name: str, how: dict[str, Any], store: BagStore
) -> None:
    """Bags in the store's order begin at the same inducing points, in the same folds."""
    bags = StoreBlockSource(store).read_all()
    here, there = (MAKE[name]().set_params(**how) for _ in range(2))
    here.fit(bags, n_thread=1)
    fit(there, store)
    assert _chosen(here) == _chosen(there)
    for row, other in zip(here.selection_, there.selection_, strict=True):
        assert row["log_score"] == pytest.approx(other["log_score"], rel=1e-8)
    for number in ("slope", "intercept", "size_slope"):
        one, other = (getattr(each.recalibration_, number) for each in (here, there))
        assert one == pytest.approx(other, rel=1e-8, abs=1e-8)
    np.testing.assert_array_equal(
        there.predict_bags(bags).mean,
        there.recalibration_.apply(there.bag_distribution(bags), np.diff(bags.offsets)).mean,
    )


@pytest.mark.ci
def test_fits_within_a_fit_are_made_on_workers_and_go_on_where_they_stopped(
    store: BagStore, client: Client, tmp_path: Path
) -> None:
    make = partial(models.PsiVGPMIL, n_inducing=5, max_epochs=2, n_draws=20)
    here, there, parts = (make() for _ in range(3))
    fit(here, store)
    assert len(here.selection_) > 1
    fit(there, store, client)
    _assert_same(here, there, store)
    assert here.recalibration_ == there.recalibration_
    with pytest.raises(KeyboardInterrupt):
        fit(parts, store, checkpoint=tmp_path, progress=Stop(2.5))
    finished = sum(1 for _ in tmp_path.iterdir())
    assert finished >= 2
    fit(parts, store, checkpoint=tmp_path)
    _assert_same(here, parts, store)
    assert here.selection_ == parts.selection_


def test_the_choice_of_the_start_is_interrupted_in_the_middle_of_an_epoch(
    store: BagStore, tmp_path: Path
) -> None:
    whole, parts = (MAKE["psi-svi"](start="auto") for _ in range(2))
    fit(whole, store)
    assert [row["settings"] for row in whole.selection_] == [{"start": 0.5}, {"start": 0.05}]
    # Each of the two fits is one step of progress, each of its six epochs a sixth of that.
    for after, epoch, name in ((2.5 / 6, 2, "choice-0"), (1 + 3.5 / 6, 3, "choice-1")):
        stop = Stop(after)
        with pytest.raises(KeyboardInterrupt):
            fit(parts, store, checkpoint=tmp_path, progress=stop)
        assert stop.done < after + 0.6 / 6
        kept = sorted((tmp_path / name).glob("epoch-*"))
        assert kept[-1].name.startswith(f"epoch-{epoch:06d}")
    again = Stop(np.inf)
    fit(parts, store, checkpoint=tmp_path, progress=again)
    assert again.logs == ["fit: resumes from the checkpoint of epoch 3 (choice-1)"]
    assert again.done == pytest.approx(2)
    _assert_same(whole, parts, store)
    assert whole.selection_ == parts.selection_


def test_a_fit_of_one_epoch_says_so() -> None:
    training: Any = SimpleNamespace(stopped=None, converged=True, epoch=1)
    assert _told(training, {}) == "converged after 1 epoch"
    training.converged = False
    assert _told(training, {}).startswith("the bound still rose after 1 epoch (fit.max_epochs)")
