"""Configurations that earlier versions recorded are read as they were run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.config.recorded import without_idle
from pipeline.config.schema import Config

LABELS = {
    "areas": {"path": "areas.gpkg", "id": "id"},
    "labels": {"path": "labels.csv", "id": "id", "value": "outbreak"},
    "population": {"path": "people.tif"},
    "covariates": {"rain": {"path": "rain.tif"}},
    "model": {"kind": "vwsgp"},
}
COUNTS = {
    **{key: value for key, value in LABELS.items() if key not in ("labels", "model")},
    "counts": {"path": "counts.csv", "id": "id", "value": "cases"},
}


@pytest.mark.parametrize(
    "idle", [{"output": {"exceedance": [50]}}, {"gates": {"coverage": [0.8, 1.0]}}]
)
def test_keys_that_labels_did_not_use_are_left_out_of_a_record(idle, tmp_path: Path) -> None:
    context = {"base": tmp_path}
    with pytest.raises(ValidationError):
        Config.model_validate({**LABELS, **idle}, context=context)
    read = Config.model_validate(without_idle({**LABELS, **idle}), context=context)
    assert read == Config.model_validate(LABELS, context=context)
    assert without_idle({**COUNTS, **idle}) == {**COUNTS, **idle}
