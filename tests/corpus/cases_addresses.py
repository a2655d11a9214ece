"""Addresses: of servers, of archives, of parts of files; with and without secrets."""

from __future__ import annotations

import zipfile
from typing import Any

from tests.corpus.case import Country, Error, case

SECRET = "hunter2"


def _path(title: str, address: str, found: str, remedy: str) -> None:
    # Ingest asks a dead server several times, and words that otherwise.
    dead = "cannot be reached" in found
    case("address", Error("covariates.wave", found, remedy), name=title, also_ingest=not dead)(
        lambda country: country.covariate(path=address)
    )


_path("dead server", "http://127.0.0.1:1/x.tif", "cannot be reached", "check the server")
_path("password", f"http://me:{SECRET}@127.0.0.1:1/x.tif", "cannot be reached", "the server")
_path("token", f"http://127.0.0.1:1/x.tif?sig={SECRET}&se=1", "cannot be reached", "the server")
_path("half an address", "http://[::1", "is no address", "correct the address")
_path("only a scheme", "s3://", "is not an address", "give a file")
_path("scheme unknown", "gopher://host/x.tif", "is not an address that is read", "https://")
_path("database", f"PG:host=127.0.0.1 password={SECRET}", "is not an address", "give a file")
_path("standard input", "/vsistdin/", "is not an address", "give a file")
_path("GDAL's vrt address", "vrt://x.tif?bands=1", "is not an address that is read", "")
_path("part of a file that is not there", "NETCDF:rain.nc:tp", "no file", "correct the path")
_path("unset variable", "${UNSET_4711}/wave.tif", "UNSET_4711", "set")
_path("device that never ends", "/dev/zero", "is no regular file", "GeoTIFF")
_path("system file", "/etc/passwd", "is not a raster", "GeoTIFF")


def _zip(country: Country, members: dict[str, Any], member: str) -> None:
    with zipfile.ZipFile(country.directory / "maps.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    country.covariate(path=f"/vsizip/{country.directory}/maps.zip/{member}")


@case("address")
def raster_in_an_archive(country: Country) -> None:
    _zip(country, {"wave.tif": country.covariates[0].read_bytes()}, "wave.tif")


@case("address", Error("covariates.wave", "has a member outside itself", "pack the archive"))
def archive_with_paths_outside(country: Country) -> None:
    _zip(country, {"../wave.tif": country.covariates[0].read_bytes()}, "../wave.tif")


@case("address", Error("covariates.wave", "is a VRT in an archive", "unpack"))
def vrt_in_an_archive(country: Country) -> None:
    _zip(country, {"wave.vrt": "<VRTDataset/>"}, "wave.vrt")


@case("address", Error("covariates.wave", "no such member", "correct the path"))
def member_that_is_not_there(country: Country) -> None:
    _zip(country, {"wave.tif": b""}, "waves.tif")


@case("address", Error("counts (http://***@127.0.0.1:1/cases.csv)", "cannot be reached", "server"),
      also_ingest=False)  # fmt: skip
def table_on_a_dead_server(country: Country) -> None:
    country.change("counts", path=f"http://me:{SECRET}@127.0.0.1:1/cases.csv")


@case(
    "address",
    Error("areas (http://127.0.0.1:1/areas.geojson?token=***)", "cannot be reached", "server"),
    also_ingest=False,
)
def areas_on_a_dead_server(country: Country) -> None:
    country.change("areas", path=f"http://127.0.0.1:1/areas.geojson?token={SECRET}")
