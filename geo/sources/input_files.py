"""Which files and addresses an input is made of: what its reader opens, and nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from geo.core.errors import InputError
from geo.core.trust import Trust, is_web_address
from geo.sources.gdal_paths import file_of
from geo.sources.mosaic import files_of, is_pattern
from geo.sources.stac_address import stac_of
from geo.sources.stac_source import assets_of
from geo.sources.vrt import is_vrt, read_vrt

#: Suffixes of files without side-car files.
_ALONE = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".geoparquet", ".geojson", ".json", ".fgb",
          ".zip", ".tar", ".gz", ".yaml", ".pem", ".crt", ".key")  # fmt: skip
#: What stands in place of a file's suffix, or after it, in the name of a side-car file.
_BESIDE_NAMES = """aux.xml aux msk ovr msk.ovr ovr.msk ovr.ovr msk.aux.xml ovr.aux.xml hdr prj wld
    stx clr rrd ige rde blw flw idx xml imd rpb shx dbf cpg qix sbn sbx qpj shp.xml cst idm ind gfs
    xsd sgrd sdat mgrd rdc ref"""
_BESIDE = frozenset(_BESIDE_NAMES.split())
_SQLITE = ("-wal", "-journal")  # last writes; `-shm` is an index of them


@dataclass
class InputFiles:
    """What an input is made of.

    Attributes
    ----------
    files : list of str
        Local files that exist, the input first; directories stand for all they hold.
    urls : list of str
        http(s) URLs.
    refused : str
        Why the rest is not known: the input will not be read either.
    """

    files: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    refused: str = ""


def input_files(path: str | Path, trust: Trust) -> InputFiles:
    """List the files and addresses that an input is made of.

    Parameters
    ----------
    path : str or Path
        A file or directory, an http(s) URL, a file in an archive or a part of a file as GDAL writes
        them.
    trust : Trust
        Places that a VRT may refer to; it is followed to these alone.

    Returns
    -------
    InputFiles
        Empty for a path that is no address of these kinds, and for a file that does not exist.
    """
    name = str(path)
    if is_web_address(name):
        return InputFiles(urls=[name])
    stac = stac_of(name)
    if stac is not None:
        return _of_items(*stac)
    if is_pattern(name):
        every = files_of(name)
        return InputFiles(files=[part for each in every for part in (each, *side_cars(each))])
    file = file_of(name)
    if file is None or not os.path.exists(file):
        return InputFiles()
    found = InputFiles(files=[file, *side_cars(file)])
    if is_vrt(file):
        try:
            vrt = read_vrt(file, trust)
        except InputError as error:
            found.refused = "; ".join(problem.found for problem in error.problems)
            return found
        for source in (*vrt.files[1:], *vrt.sources):
            if is_web_address(source):
                found.urls.append(source)
            else:
                found.files += [source, *side_cars(source)]
    found.files = list(dict.fromkeys(found.files))
    found.urls = list(dict.fromkeys(found.urls))
    return found


def _of_items(place: str, asset: str) -> InputFiles:
    """List the file of STAC items, and those of their asset."""
    found = InputFiles()
    places = [place]
    try:
        places += [href for _, href, _ in assets_of(place, asset)]
    except InputError as error:
        found.refused = "; ".join(problem.found for problem in error.problems)
    for each in dict.fromkeys(places):
        if is_web_address(each):
            found.urls.append(each)
        elif os.path.exists(each):
            found.files += [each, *side_cars(each)]
    return found


def side_cars(path: str) -> list[str]:
    """List the files beside a file that its readers open with it: masks, headers, indexes."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in _ALONE or os.path.isdir(path):
        return []
    plain = suffix.lower().removeprefix(".")
    world = {f"{plain}w", f"{plain[:1]}{plain[-1:]}w"} if plain else set()
    beside = _BESIDE | world
    # ENVI and SAGA: the header may replace the suffix, or follow it.
    pattern = re.compile(rf"{re.escape(stem)}(?:{re.escape(suffix)})?\.(.+)", re.IGNORECASE)
    found = []
    for entry in os.scandir(folder or "."):
        other = entry.name
        match = pattern.fullmatch(other)
        known = match and match[1].lower() in beside
        if other != name and (known or other in [name + end for end in _SQLITE]):
            found.append(os.path.join(folder, other))
    return sorted(each for each in found if os.path.isfile(each))
