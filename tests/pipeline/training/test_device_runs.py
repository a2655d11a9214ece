"""`compute.device`: fits from a store and maps on a device, here a strict stand-in for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

from models import VBAgg
from models.core.errors import ParameterError
from models.training import device
from pipeline.cluster.local import block_device
from pipeline.prediction.raster import predict_raster
from pipeline.products import tile_pass
from pipeline.products.products import layers
from pipeline.training.fit import fit
from tests.bands import read
from tests.models.backend import strict_cupy as strict
from tests.plain import plain


def _fitted(store, **how):
    model = plain(VBAgg, n_inducing=6, kernel="additive", link="exp", max_epochs=3, batch_bags=6)
    return model, fit(model, store, n_thread=1, **how)


def test_a_fit_from_a_store_is_the_processors(world, monkeypatch, tmp_path):
    strict.install(monkeypatch)
    monkeypatch.setattr(device, "DEVICE_PIXELS", 1)  # nothing joined: the same steps
    here, wanted = _fitted(world.store)
    there, found = _fitted(world.store, device="gpu", checkpoint=tmp_path)
    assert found.history[-1]["bound"] == pytest.approx(wanted.history[-1]["bound"], rel=1e-8)
    for name, value in here.state_.params.items():
        np.testing.assert_allclose(there.state_.params[name], value, atol=1e-7, err_msg=name)


def test_joined_blocks_go_through_a_fit_and_its_checkpoints(world, monkeypatch, tmp_path):
    strict.install(monkeypatch)
    _, whole = _fitted(world.store, device="gpu")
    model = plain(VBAgg, n_inducing=6, kernel="additive", link="exp", max_epochs=2, batch_bags=6)
    fit(model, world.store, device="gpu", checkpoint=tmp_path)
    model = plain(VBAgg, n_inducing=6, kernel="additive", link="exp", max_epochs=3, batch_bags=6)
    resumed = fit(model, world.store, device="gpu", checkpoint=tmp_path)
    assert resumed.epoch == 3
    for name, value in whole.state.params.items():
        np.testing.assert_array_equal(resumed.state.params[name], value, err_msg=name)


def test_workers_of_a_cluster_compute_on_their_device(world, monkeypatch):
    strict.install(monkeypatch)
    monkeypatch.setattr(device, "DEVICE_PIXELS", 200)
    _, wanted = _fitted(world.store, device="gpu")
    made = []
    monkeypatch.setattr(device.OnDevice, "__init__", _noting(device.OnDevice.__init__, made))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
        as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        _, found = _fitted(world.store, client=client, device="gpu")
    assert len(made) == 2
    for name, value in wanted.state.params.items():
        np.testing.assert_array_equal(found.state.params[name], value, err_msg=name)


def _noting(function, made):
    def noted(*args):
        made.append(args)
        return function(*args)

    return noted


def test_maps_from_the_device_are_the_hosts(world, monkeypatch, tmp_path):
    strict.install(monkeypatch)
    monkeypatch.setattr(tile_pass, "DEVICE_PIXELS", 100)  # several pieces a tile
    config = world.with_config(output={"exceedance": [50]})
    maps = {}
    for where_ in ("cpu", "gpu"):
        (tmp_path / where_).mkdir()
        predict_raster(
            world.model,
            Path(world.config.output.dir) / "work/grid.zarr",
            tmp_path / where_,
            layers(config),
            device=where_,
            n_thread=2,
        )
        for path in (tmp_path / where_).glob("*.tif"):
            maps[where_, path.name] = read(path)
    names = [name for at, name in maps if at == "cpu"]
    assert len(names) == len(layers(config))
    for name in names:
        np.testing.assert_allclose(maps["gpu", name], maps["cpu", name], rtol=1e-5, err_msg=name)


def test_a_gpu_that_is_not_there_is_one_line(world, monkeypatch):
    strict.install(monkeypatch, n_device=0)
    with pytest.raises(ParameterError, match="no GPU"):
        _fitted(world.store, device="gpu")
    _fitted(world.store, device="auto")


def test_what_the_configuration_says_of_the_device(world):
    assert block_device(world.config) == {"device": "auto", "device_memory": None}
    config = world.with_config(compute={"device": "gpu", "device_memory": "12GiB"})
    assert block_device(config) == {"device": "gpu", "device_memory": 12 << 30}
