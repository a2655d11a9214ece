"""Maps of labels are compared by their means and deviations."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import norm

from pipeline.cli.main import main
from tests.bands import read
from tests.typed import run_each

LABELS = ("100110010", "111110010")  # M01 and M02 turn positive


ONE = {"variance": 1.0, "lengthscale": 1.0, "calibrate": "none"}  # one fit
SPARSE = {"kind": "vwsgp", "inducing": 10, "options": ONE}


def labelled(files, number, model=SPARSE):
    lines = ["code,outbreak", *(f"M{k:02d},{v}" for k, v in enumerate(LABELS[number]))]
    (files.directory / f"labels{number}.csv").write_text("\n".join(lines) + "\n")
    mapping = files.mapping()
    del mapping["counts"]
    mapping |= {
        "labels": {"path": f"labels{number}.csv", "value": "outbreak"},
        "model": model,
        "fit": {"max_epochs": 5, "seed": 1} if model is SPARSE else {"seed": 1},
        "evaluate": {"schemes": []},
        "output": {"dir": f"out{number}"},
    }
    path = files.directory / f"map{number}.yaml"
    path.write_text(yaml.safe_dump(mapping))
    run_each(path, "ingest", "fit", "predict")
    return path


@pytest.mark.ci
def test_probabilities_are_compared_as_normal(files, tmp_path, capsys):
    a, b = (labelled(files, number) for number in (0, 1))
    out = tmp_path / "change"
    assert main(["compare", str(a), str(b), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "models of labels are compared by their means; means and standard dev" in told.err
    assert "as if the errors of A and B were independent and normal" in told.err
    assert "Pixels: " in told.out
    assert "nan" not in told.out
    mean, sd = (
        [read(files.directory / f"out{n}/probability_{part}.tif") for n in (0, 1)]
        for part in ("mean", "sd")
    )
    np.testing.assert_allclose(read(out / "difference_mean.tif"), mean[1] - mean[0], atol=1e-6)
    wanted = norm.cdf((mean[1] - mean[0]) / np.hypot(*sd))
    np.testing.assert_allclose(read(out / "change_probability.tif"), wanted, atol=1e-5)
    table = pd.read_csv(out / "change.csv").set_index("code")
    own = [pd.read_csv(files.directory / f"out{n}/areas.csv").set_index("code") for n in (0, 1)]
    difference = own[1]["probability"] - own[0]["probability"]
    np.testing.assert_allclose(table["difference"], difference.loc[table.index], rtol=1e-9)
    z = difference / np.hypot(own[0]["probability_sd"], own[1]["probability_sd"])
    np.testing.assert_allclose(table["change_probability"], norm.cdf(z.loc[table.index]), rtol=1e-9)
    np.testing.assert_array_equal(
        table["observed_b"] - table["observed_a"],
        [int(y) - int(x) for x, y in zip(*LABELS, strict=True)],
    )
    assert table["ratio"].notna().all()
    report = json.loads((out / "compare.json").read_text())
    assert report["total"] == {}
    assert report["method"]["areas"] == "means and deviations"
    assert report["unit"] == "1"
    # A rate is no probability.
    text = (files.directory / "map1.yaml").read_text()
    assert text
    mapping = files.mapping() | {
        "model": {"kernel": "linear + matern32(space)", "link": "exp"},
        "fit": {"max_epochs": 2},
        "output": {"dir": "rates", "draws": 20},
    }
    rates = files.directory / "rates.yaml"
    rates.write_text(yaml.safe_dump(mapping))
    run_each(rates, "ingest", "fit", "predict")
    capsys.readouterr()
    assert main(["compare", str(a), str(rates), "--out", str(out)]) == 2
    assert "compare maps of the same quantity and unit" in capsys.readouterr().err


def test_a_model_that_labels_areas_alone_has_no_map_to_compare(files, tmp_path, capsys):
    path = labelled(files, 0, {"kind": "blrt", "options": {"n_trees": 2}})
    capsys.readouterr()
    assert main(["compare", str(path), str(path), "--out", str(tmp_path / "change")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: has no probability_mean.tif; compare maps of pixels")
