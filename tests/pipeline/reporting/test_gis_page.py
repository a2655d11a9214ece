"""``docs/gis.md``: its Python, typed as it stands beside the results of a run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PAGE = Path(__file__).parents[3] / "docs/gis.md"

pytestmark = [
    pytest.mark.ci,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rioxarray
]


def test_the_python_of_the_page_runs(
    finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").symlink_to(finished.out)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    sums, rasters, table = [{} for _ in range(3)]
    for block, names in zip(blocks, (sums, rasters, table), strict=True):
        exec(compile(block, str(PAGE), "exec"), names)

    # Another route to the same numbers: the tables of the run.
    areas, levels = sums["areas"], pd.read_csv(finished.out / "levels_training.csv")
    told = levels.set_index(levels["id"].astype(str))["rate"]
    ids = areas[finished.config.areas.id].astype(str)
    np.testing.assert_allclose(areas["rate"], told.loc[ids], rtol=1e-5)
    assert float(rasters["upper"].max()) > float(rasters["rate"].max()) > 0
    assert len(table["outside"]) < len(table["areas"])
    assert "observed counts lie outside their 90 % interval" in capsys.readouterr().out
