"""The whole way: counts and boundaries of a server, a map, its statistics back to the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.main import main
from tests.pipeline.dhis2 import fake_server as fake
from tests.pipeline.dhis2.conftest import PULL
from tests.typed import run_each

MODEL = {
    "inducing": 4,
    "integrate": "none",
    "kernel": "constant + matern32(space) * time(matern12)",
    "options": {"n_moving": 4},
}


@pytest.mark.ci
def test_pull_run_push(
    write: Callable[..., Path],
    dhis2: fake.Dhis2,
    url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With failures on the way; every value of the server is that of the run's tables."""
    push = {"elements": {"rate": fake.SENT, "p_above_1": fake.HIGH}, "decimals": 4}
    config = str(
        write(
            population=None,
            grid={"crs": "EPSG:32738", "resolution": 25000},
            model=MODEL,
            output={"dir": "out", "draws": 50, "exceedance": [1], "rate_per": 1000, "forecast": 1},
            dhis2={"url": url, "pull": PULL, "push": push},
        )
    )
    assert main(["check", config]) == 2
    assert f"run `disagg dhis2 pull {config}` first" in capfd.readouterr().err
    dhis2.failures = [None, 503, "break"]
    assert main(["dhis2", "pull", config]) == 0
    run_each(config, "ingest", "fit", "predict")
    dhis2.failures = [429, None, "cut"]
    assert main(["dhis2", "push", config, "--send"]) == 0
    periods = pd.read_csv(tmp_path / "out/periods.csv").set_index(["period", "id"])
    n = 0
    for period, folder in (("2024-02", "out"), ("2024-03", "out/periods/2024-03")):
        level = pd.read_csv(tmp_path / folder / "levels_training.csv").set_index("id")
        for unit in dhis2.at_level(2):
            code, combo = period.replace("-", ""), fake.DEFAULT
            rate = float(dhis2.stored[fake.SENT, code, unit, combo])
            assert rate == pytest.approx(periods.loc[(period, unit), "rate"], abs=5.1e-5)
            high = float(dhis2.stored[fake.HIGH, code, unit, combo])
            assert high == pytest.approx(level.loc[unit, "p_above_1"], abs=5.1e-5)
            n += 2
    assert n == 24
    known, n_ask = dict(dhis2.stored), len(dhis2.asked)
    written = (tmp_path / "out/periods.csv").stat().st_mtime_ns
    assert main(["dhis2", "pull", config]) == 0
    assert main(["predict", config, "--quiet"]) == 0  # up to date
    assert (tmp_path / "out/periods.csv").stat().st_mtime_ns == written
    assert main(["dhis2", "push", config, "--send"]) == 0
    assert dhis2.stored == known
    assert not [method for method, *_ in dhis2.asked[n_ask:] if method == "POST"]
