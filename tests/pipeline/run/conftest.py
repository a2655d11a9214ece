"""Stages that only write down that they ran, on inputs that hold their own names."""

import sys
import types
from contextlib import contextmanager

import pytest
from matplotlib.figure import Figure

from pipeline.cli.main import main
from pipeline.config.schema import Config
from pipeline.demo.country import CountrySpec, simulate_country
from pipeline.run.stages import STAGES
from tests.quick import shorten

NAMES = tuple(STAGES)
SPEC = CountrySpec(
    (36, 40), 1 / 12, 700, 16, 6, 4e5, covariates=("elevation", "temperature"), n_inducing=8
)
FAST = {
    "max_epochs: 200": "max_epochs: 4",
    "folds: 5": "folds: 2",
    "schemes: [area, block]": "schemes: [area], calibration: none",
    "draws: 500": "draws: 20",
}
SAVE = Figure.savefig


@contextmanager
def with_pictures():
    """Draw the pictures, which short runs leave blank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", SAVE)
        yield


@pytest.fixture(scope="session")
def country(tmp_path_factory):
    """The directory of a country in which ``disagg run`` has been typed once."""
    directory = tmp_path_factory.mktemp("a country, été") / "project"
    config = simulate_country(directory, SPEC, seed=3)
    text = config.read_text()
    for old, new in FAST.items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    # It is made before a module's runs are shortened.
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        with with_pictures():
            assert main(["run", str(config), "--quiet"]) == 0
    return directory


def build_config(directory, **changes):
    data = {
        "areas": {"path": "areas.gpkg", "id": "id"},
        "counts": {"path": "cases.csv", "value": "cases"},
        "population": {"path": "population.tif"},
        "covariates": {"rain": {"path": "rain.tif"}},
        "evaluate": {"folds": {"path": "folds.csv", "id": "id", "fold": "fold"}},
        "truth": {"path": "truth.tif"},
        **changes,
    }
    return Config.model_validate(data, context={"base": directory})


@pytest.fixture
def calls(monkeypatch):
    """Put stand-ins in the place of the stages; the list has the name of each that ran."""
    ran = []

    def stand_in(name):
        def stage(context):
            config = context.config
            ran.append(name)
            out = config.output.dir
            if name == "ingest":
                for store in ("bags.zarr", "grid.zarr"):
                    (out / "work" / store).mkdir(exist_ok=True)
                    counts = (out.parent / "cases.csv").read_bytes()
                    (out / "work" / store / "zarr.json").write_bytes(counts)
            elif name == "fit":
                (out / "work" / "model").mkdir(exist_ok=True)
                (out / "work" / "model" / "m.json").write_text(config.fit.model_dump_json())
            elif name == "predict":
                for output in ("rate_mean.tif", "rate_mean.qml", "areas.csv"):
                    (out / output).write_text(str(config.output.rate_per))
            elif name == "evaluate":
                (out / "evaluation.json").write_text("{}")
            else:
                (out / "report.html").write_text((out / "evaluation.json").read_text())
            return {"stage": name}

        return stage

    for stage in STAGES.values():
        module, _, function = stage.function.partition(":")
        fake = types.ModuleType(module)
        setattr(fake, function, stand_in(stage.name))
        monkeypatch.setitem(sys.modules, module, fake)
    return ran


@pytest.fixture
def inputs(tmp_path):
    names = ("areas.gpkg", "cases.csv", "population.tif", "rain.tif", "folds.csv", "truth.tif")
    for name in names:
        (tmp_path / name).write_text(name)
    return tmp_path
