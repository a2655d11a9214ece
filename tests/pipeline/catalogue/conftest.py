"""What the extensions of STAC require, and how a project is read."""

from __future__ import annotations

import socket
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pystac.validation.stac_validator import JsonSchemaSTACValidator

_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_NUMBERS = {"type": "array", "items": _NUMBER}
_FILE = {
    "file:size": {"type": "integer", "minimum": 0},
    "file:checksum": {"type": "string", "pattern": "^1220[0-9a-f]{64}$"},
}
_BAND = {
    "data_type": {"enum": ["float32", "float64"]},
    "nodata": {"anyOf": [_NUMBER, {"enum": ["nan", "inf", "-inf"]}]},
    "sampling": {"enum": ["area", "point"]},
    "unit": _TEXT,
    "spatial_resolution": _NUMBER,
    "statistics": {"additionalProperties": _NUMBER, "minProperties": 1},
}
_CLOSED = {"additionalProperties": False, "required": ["data_type", "nodata"]}
_BANDS = {"type": "array", "minItems": 1, "items": {"properties": _BAND, **_CLOSED}}


def _of_item(required: list[str], **fields: Any) -> dict[str, Any]:
    named = {name.replace("_", ":", 1): rule for name, rule in fields.items()}
    return {"properties": {"properties": {"required": required, "properties": named}}}


def _of_assets(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"properties": {"assets": {"additionalProperties": {"properties": fields, **more}}}}


#: What the extensions require of the fields that the catalogue uses, from their tables of fields.
REQUIRED = {
    f"https://stac-extensions.github.io/{name}/schema.json": schema
    for name, schema in {
        "file/v2.1.0": _of_assets(_FILE, dependentRequired={"file:checksum": ["file:size"]}),
        "projection/v2.0.0": _of_item(
            ["proj:code"],
            proj_code={"type": ["string", "null"], "pattern": "^[A-Z]+:[0-9]+$"},
            proj_wkt2={"type": ["string", "null"]},
            proj_shape={"type": "array", "items": {"type": "integer"}, "minItems": 2},
            proj_transform={**_NUMBERS, "minItems": 6, "maxItems": 9},
            proj_bbox={**_NUMBERS, "minItems": 4, "maxItems": 4},
        ),
        "raster/v1.1.0": _of_assets({"raster:bands": _BANDS}),
        "version/v1.2.0": _of_item(["version"], version=_TEXT, deprecated={"type": "boolean"}),
        "processing/v1.2.0": _of_item(
            ["processing:software", "processing:lineage", "processing:level"],
            processing_software={"additionalProperties": _TEXT},
            processing_lineage=_TEXT,
            processing_level={"pattern": "^(RAW|L[0-4][A-D]?)$"},
        ),
    }.items()
}


@pytest.fixture
def validator(monkeypatch):
    """pystac's validator with our own requirements of the extensions, and no network."""

    def refuse(*_, **__):
        pytest.fail("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    found = JsonSchemaSTACValidator()
    for address, schema in REQUIRED.items():
        meta = "https://json-schema.org/draft/2020-12/schema"
        found.schema_cache[address] = {"$schema": meta, "$id": address, **schema}
    return found


def read_project(out: Path) -> ET.Element:
    with zipfile.ZipFile(out / "disagg.qgz") as archive:
        assert archive.namelist() == ["disagg.qgs"]
        return ET.fromstring(archive.read("disagg.qgs"))
