"""Types of the configuration's values, with messages for invalid ones."""

from __future__ import annotations

import codecs
import datetime
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from geo.core.text_safety import one_line_text
from geo.sources.gdal_paths import with_folder
from pipeline.config.base import config_error
from pipeline.storage.location import is_object_address, is_remote

_BARE = re.compile(r"\$([A-Za-z_]\w*)")
_BYTES = re.compile(r"^\s*\d+(\.\d+)?\s*([kKMGT]i?)?B\s*$")

# GDAL's names of servers; under these the run's own fingerprints, retries and copies hold.
_SCHEMES = {"vsis3": "s3://", "vsigs": "gs://", "vsiaz": "az://", "vsicurl": ""}
_VIRTUAL = re.compile(r"^/(vsis3|vsigs|vsiaz|vsicurl(?=/https?://))/")

PERIOD = "period"  # column made of a table with a column for each period


def _resolve(path: str, info: ValidationInfo) -> str:
    if not path:
        raise config_error(found="an empty path", remedy="give the path of a file")
    check_dollar(path)
    path = _VIRTUAL.sub(lambda found: _SCHEMES[found[1]], path)
    base = (info.context or {}).get("base", Path())
    if is_remote(path):
        _check_address(path)
        return path if is_object_address(path) else with_folder(path, base)
    return str((base / Path(path).expanduser()).resolve())


def _check_address(path: str) -> None:
    try:
        urlsplit(path)
    except ValueError as error:
        found = f"{path} is no address ({error})"
        raise config_error(found=found, remedy="correct the address") from None


def bare_variables(path: str) -> list[str]:
    """List the names after a dollar that were probably meant as environment variables.

    They are those of variables that are set, and those that begin a part of the path.
    """
    return [
        found[1]
        for found in _BARE.finditer(path)
        if found[1] in os.environ or found.start() == 0 or path[found.start() - 1] in "/\\"
    ]


def check_dollar(path: str) -> None:
    """Reject a path with ``$NAME``: it would silently be a file or directory of that name."""
    for name in bare_variables(path):
        raise config_error(found=f"${name} in {path} is not expanded", remedy=f"write ${{{name}}}")


def _local_dir(value: Any) -> Any:
    if isinstance(value, str) and is_remote(value):
        raise config_error(remedy="give a local directory, or an address such as s3://bucket/map")
    return value


def _address(value: str | None) -> str | None:
    if value is not None and not is_object_address(value):
        raise config_error(remedy="give an address such as s3://bucket/map, as output.dir")
    if value is not None:
        check_dollar(value)
    return value


def _resolve_dir(path: Path, info: ValidationInfo) -> Path:
    return Path(_resolve(str(path), info))


def _plain_number(value: Any) -> Any:
    # YAML reads yes/on/true as booleans, which are integers in Python.
    if isinstance(value, bool):
        raise config_error(remedy="give a number")
    return value


def _workers(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise config_error(remedy="give 'auto' or a whole number of at least 1")


def whole_or(*words: str, least: int) -> BeforeValidator:
    """Return a validator of whole numbers of at least ``least``, and of some words."""
    named = ", ".join(f"'{word}'" for word in words)

    def check(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if whole or value in words:
            return value
        raise config_error(remedy=f"give {named} or a whole number of at least {least}")

    return BeforeValidator(check)


def _kilometres(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == "auto" or (number and 0 <= value < float("inf")):
        return value
    raise config_error(remedy="give 'auto' or a number of km, 0 for none")


def _memory(value: Any) -> Any:
    if value == "auto" or (isinstance(value, str) and _BYTES.match(value)):
        return value
    raise config_error(remedy="give 'auto' or an amount such as 8GiB")


def _scheduler(value: Any) -> Any:
    known = ("local", "processes", "kubernetes", "gateway", "jobqueue")
    if value in known or (isinstance(value, str) and value.startswith(("tcp://", "tls://"))):
        return value
    raise config_error(
        remedy="give 'local', 'processes' or an address such as tcp://host:8786, or "
        "'kubernetes', 'gateway' or 'jobqueue' with a section of that name"
    )


def _name(value: str) -> str:
    if not value.strip() or one_line_text(value) != value.strip():
        raise config_error(
            found="an empty name, or one with line breaks or control characters",
            remedy="give a name of one line",
        )
    return value


def _crs(value: str) -> str:
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        CRS.from_user_input(value)
    except CRSError:
        raise config_error(
            found=f"PROJ knows no coordinate reference system {value!r}",
            remedy="give one such as EPSG:32738",
        ) from None
    return value


def _text(value: Any) -> Any:
    # YAML reads 2023-01-15 as a date.
    return value.isoformat() if isinstance(value, datetime.date) else value


Text = Annotated[str, BeforeValidator(_text)]
"""A text that may look like a number or a date to YAML."""

InputPath = Annotated[str, AfterValidator(_resolve)]
"""An input file: an absolute local path, or an unchanged URL or virtual path of GDAL."""

Name = Annotated[str, AfterValidator(_name)]
Number = Annotated[float, BeforeValidator(_plain_number)]
Whole = Annotated[int, BeforeValidator(_plain_number)]
Seconds = Annotated[Number, Field(gt=0, json_schema_extra={"unit": "s"})]
Seed = Annotated[Whole, Field(ge=0)]

AtLeast1 = Annotated[int, Field(ge=1)]
AtLeast2 = Annotated[int, Field(ge=2)]
Crs = Annotated[str, AfterValidator(_crs)]
Workers = Annotated[AtLeast1 | Literal["auto"], BeforeValidator(_workers)]
"""A whole number of at least 1, or ``auto``."""

Kilometres = Annotated[
    Annotated[float, Field(ge=0)] | Literal["auto"], BeforeValidator(_kilometres)
]
"""A distance of at least 0, or ``auto``."""

Memory = Annotated[str, BeforeValidator(_memory), Field(json_schema_extra={"unit": "bytes"})]
"""An amount such as 8GiB, or ``auto``."""

Scheduler = Annotated[str, BeforeValidator(_scheduler)]
LocalDir = Annotated[Path, BeforeValidator(_local_dir), AfterValidator(_resolve_dir)]
ObjectAddress = Annotated[str | None, AfterValidator(_address)]


def _encoding(value: str) -> str:
    try:
        codecs.lookup(value)
    except (LookupError, ValueError):
        raise config_error(
            found=f"Python knows no encoding {value!r}", remedy="give one such as cp1252 or latin-1"
        ) from None
    return value


#: Name of an encoding of text.
Encoding = Annotated[str, AfterValidator(_encoding)]
