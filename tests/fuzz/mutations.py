"""Random malformed and misleading inputs: each mutation spoils one file of a sound project.

A mutation takes the project and a generator of random numbers, and returns what it did, in words.
"""

from __future__ import annotations

import itertools
import json
import math
import string
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import geopandas as gpd
import numpy as np
import rasterio
import shapely
from affine import Affine
from shapely import affinity

from tests.fuzz.project import CRS, Project

Mutation = Callable[[Project, Random], str]

MUTATIONS: dict[str, list[Mutation]] = {}

#: Texts that have surprised programs before.
TEXTS = [
    "", " ", "\t", "nan", "NaN", "inf", "-inf", "null", "~", "true", "no", "1e999", "-0", "1_000",
    "0x10", "1,5", "1.234,5", "1 000", "\u00a0", "\u200b", "\ufeff", "\u202e", "é", "e\u0301", "İ",
    "💧", "名", "=1+1", "@x", "-1+1", "'", '"', "`", ";", "|", "\\", "/", "..", "../..",
    "/etc/passwd", "/dev/zero", "/dev/full", "/proc/self/environ", "${HOME}", "$HOME", "${}",
    "${UNSET_4711}", "%s%n", "{period}", "{0}", "{{x}}", "[red]", "[/]", "<b>", "a\nb", "a\rb",
    "a\x00b", "\x1b[31m", "x" * 5000, "9" * 400, "EPSG:4326", "EPSG:999999", "EPSG:0",
    "+proj=ob_tran", "LOCAL_CS[]", "s3://", "s3://nowhere-4711/x.tif", "http://127.0.0.1:1/x.tif",
    "http://[::1", "file:///etc/passwd", "/vsizip/x.zip", "/vsizip//etc/passwd", "/vsicurl/",
    "/vsimem/x", "/vsistdin/", "NETCDF:x.nc:y", "GTIFF_DIR:1:x.tif", "WMS:http://127.0.0.1:1",
    "PG:host=127.0.0.1", "MEM:::DATAPOINTER=1", "vrt://x.tif", "2020-13-45", "2020-02-30",
    "12:30:45", "1e5", ".5", "5.", "+5", "0o17", "0b1",
]  # fmt: skip

NUMBERS: list[Any] = [
    0, -1, 1, 2, 1e-300, 1e300, -1e300, 1e18, 2**31, 2**63, 2**64, 10**40, math.nan, math.inf,
    -math.inf, 0.5, 1e-9, 255, 65535, 32767, -9999, -32768,
]  # fmt: skip


def mutation(family: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation of a family."""

    def add(function: Mutation) -> Mutation:
        MUTATIONS.setdefault(family, []).append(function)
        return function

    return add


def any_value(rng: Random, depth: int = 0) -> Any:
    """Return anything that YAML can hold."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice([None, True, False])
    if kind in (2, 3):
        return rng.choice(TEXTS)
    if kind == 4:
        return "".join(rng.choice(string.printable) for _ in range(rng.randrange(12)))
    if kind == 5:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {str(rng.choice(TEXTS)): any_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def spoil_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, cut, double or replace some bytes; half of the time near the start."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        if not data:
            break
        at = rng.randrange(min(len(data), 600) if rng.random() < 0.5 else len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, 10, 34, 44])
        elif kind == 2:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 16)))
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


# -- the configuration -----------------------------------------------------------------------------


def _places(data: Any) -> list[tuple[Any, ...]]:
    """Return the keys of nested data; the first thousands if aliases repeat without end."""
    return list(itertools.islice(_all_places(data, ()), 5000))


def _all_places(data: Any, key: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if key:
        yield key
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    for name, value in items:
        yield from _all_places(value, (*key, name))


def _holder(data: Any, key: tuple[Any, ...]) -> Any:
    for part in key[:-1]:
        data = data[part]
    return data


@mutation("configuration")
def replace_a_value(project: Project, rng: Random) -> str:
    data = project.read_config()
    key, value = rng.choice(_places(data)), any_value(rng)
    _holder(data, key)[key[-1]] = value
    project.write_config(data)
    return f"{key} = {value!r:.80}"


@mutation("configuration")
def remove_a_key(project: Project, rng: Random) -> str:
    data = project.read_config()
    key = rng.choice(_places(data))
    del _holder(data, key)[key[-1]]
    project.write_config(data)
    return f"without {key}"


@mutation("configuration")
def add_a_key(project: Project, rng: Random) -> str:
    data = project.read_config()
    sections = [k for k in _places(data) if isinstance(_holder(data, k)[k[-1]], dict)] + [()]
    key = rng.choice(sections)
    section = _holder(data, (*key, None)) if key else data
    known = [
        "density", "band", "resampling", "transform", "nodata", "crs", "scale", "offset", "units",
        "variable", "repair", "layer", "sheet", "period", "tested", "weight", "of", "unit",
        "likelihood", "link", "kernel", "inducing", "precision", "exceedance", "rate_per",
        "interval", "mask", "draws", "folds", "schemes", "batch_areas", "max_epochs",
        "learning_rate", "seed", "tolerance", "labels", "truth", "gates", "notify", "publish",
        "update", "metrics", "storage", "compute", "url", "dir", "like", "resolution", "name",
    ]  # fmt: skip
    name, value = rng.choice(known + TEXTS), any_value(rng)
    section[name] = value
    project.write_config(data)
    return f"{key} + {name!r}: {value!r:.80}"


@mutation("configuration")
def spoil_the_text(project: Project, rng: Random) -> str:
    project.config.write_bytes(spoil_bytes(project.config.read_bytes(), rng))
    return "bytes of the configuration"


@mutation("configuration")
def a_strange_document(project: Project, rng: Random) -> str:
    text = rng.choice(
        [
            "",
            "- a\n- b\n",
            "a: &x [*x]\n",
            "a: &x {b: *x}\n",
            "[" * 3000,
            "{a: " * 500,
            "? [a]\n: b\n",
            "a: !!python/object/apply:os.system [id]\n",
            "a: !!binary x\n",
            "%YAML 9.9\n---\na: b\n",
            "---\na: b\n---\nc: d\n",
            "a: *nowhere\n",
            "\ufeffname: x\n",
            "name: 2001-01-01\n",
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n"
                for k in range(7)
            ),
        ]
    )
    if rng.random() < 0.5:
        text = project.config.read_text() + text
    project.config.write_text(text)
    return f"document {text[:40]!r}"


# -- the table of counts ---------------------------------------------------------------------------


@mutation("table")
def replace_cells(project: Project, rng: Random) -> str:
    rows = [line.split(",") for line in project.counts.read_text().splitlines()]
    texts = [*TEXTS, *map(str, NUMBERS)]
    said = []
    for _ in range(rng.randrange(1, 4)):
        row = rng.choice(rows)
        at, text = rng.randrange(len(row)), rng.choice(texts)
        row[at] = text
        said.append(f"{text[:20]!r}")
    project.counts.write_text(
        "\n".join(",".join(row) for row in rows), encoding="utf-8", errors="replace"
    )
    return f"cells {', '.join(said)}"


@mutation("table")
def rewrite_the_table(project: Project, rng: Random) -> str:
    text = project.counts.read_text()
    way = rng.choice(
        [
            "semicolon", "tab", "utf-16", "latin-1", "bom", "crlf", "cr", "quotes", "twice",
            "header", "empty", "ragged", "blank", "decimal", "spaces", "columns",
        ]
    )  # fmt: skip
    data = {
        "semicolon": text.replace(",", ";"),
        "tab": text.replace(",", "\t"),
        "crlf": text.replace("\n", "\r\n"),
        "cr": text.replace("\n", "\r"),
        "quotes": text.replace("M", '"M', 1),
        "twice": text + text,
        "header": text.split("\n", 1)[1],
        "empty": "",
        "ragged": text + "M9,1,2,3,4\n,\n",
        "blank": text.replace("\n", "\n\n"),
        "decimal": text.replace("1", "1.000,5"),
        "spaces": text.replace(",", " , "),
        "columns": text.replace("\n", ",x\n").replace("cases,x", "cases,cases"),
    }.get(way, text)
    encoding = {"utf-16": "utf-16", "bom": "utf-8-sig", "latin-1": "latin-1"}.get(way, "utf-8")
    if way == "latin-1":
        data = data.replace("M", "\u00e9")
    project.counts.write_text(data, encoding=encoding, newline="")
    return way


@mutation("table")
def spoil_the_table(project: Project, rng: Random) -> str:
    project.counts.write_bytes(spoil_bytes(project.counts.read_bytes(), rng))
    return "bytes of the table"


@mutation("table")
def another_format(project: Project, rng: Random) -> str:
    import pandas as pd

    suffix = rng.choice([".parquet", ".xlsx", ".gpkg", ".json", ".xls", ".dbf", ""])
    frame = pd.read_csv(project.counts, dtype={"code": str})
    path = project.counts.with_suffix(suffix)
    if suffix == ".parquet":
        if rng.random() < 0.3:
            frame["cases"] = (
                frame["cases"].map(lambda n: rng.choice([str(n), n]) if n else None).astype(str)
            )
        frame.to_parquet(path)
    elif suffix == ".gpkg":
        gpd.GeoDataFrame(frame, geometry=[None] * len(frame), crs=CRS).to_file(path)
    else:
        path.write_bytes(project.counts.read_bytes())
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(path.read_bytes(), rng))
    project.change("counts", path=path.name)
    return f"counts as {suffix or 'no suffix'}"


# -- the boundaries --------------------------------------------------------------------------------


def _strange_geometry(shape: Any, rng: Random) -> Any:
    x, y = shape.centroid.x, shape.centroid.y
    ways: list[Callable[[], Any]] = [
        lambda: None,
        lambda: shapely.Polygon(),
        shapely.GeometryCollection,
        lambda: shapely.Point(x, y),
        lambda: shape.exterior,
        lambda: shapely.Polygon([(x, y), (x + 5e3, y + 5e3), (x + 5e3, y), (x, y + 5e3)]),
        lambda: affinity.scale(shape, 1e-9, 1e-9),
        lambda: affinity.scale(shape, 1e4, 1e4),
        lambda: affinity.translate(shape, 1e9, 0),
        lambda: affinity.translate(shape, rng.choice([1e3, 4e4]), 0),
        lambda: shapely.MultiPolygon([shape, shape]),
        lambda: shapely.transform(shape, lambda c: c * math.nan),
        lambda: shapely.transform(shape, lambda c: c[:, ::-1]),
        lambda: shape.buffer(-1e3).union(shape.boundary),
        lambda: shapely.Polygon(
            shape.exterior.coords, [affinity.scale(shape, 2, 2).exterior.coords]
        ),
        lambda: shapely.transform(shape, lambda c: np.where(c > 5.1e5, math.inf, c)),
        lambda: shapely.force_3d(shape, math.nan),
        lambda: affinity.scale(shape, 1, 1e-12),
    ]
    return rng.choice(ways)()


@mutation("boundaries")
def strange_shapes(project: Project, rng: Random) -> str:
    frame = project.read_areas()
    shapes = list(frame.geometry)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(shapes))
        if shapes[at] is not None and shapes[at].geom_type == "Polygon" and not shapes[at].is_empty:
            shapes[at] = _strange_geometry(shapes[at], rng)
    project.write_areas(frame.set_geometry(gpd.GeoSeries(shapes, crs=frame.crs)))
    return "shapes " + ", ".join(sorted({"none" if s is None else s.geom_type for s in shapes}))


@mutation("boundaries")
def strange_ids(project: Project, rng: Random) -> str:
    frame = project.read_areas()
    ids: list[Any] = list(frame["code"])
    for _ in range(rng.randrange(1, 4)):
        ids[rng.randrange(len(ids))] = rng.choice(
            [*TEXTS, None, ids[0], ids[0].lower(), f" {ids[1]} "]
        )
    frame["code"] = [None if i is None else i.replace("\x00", "") for i in ids]
    project.write_areas(frame)
    return "ids"


@mutation("boundaries")
def another_vector_file(project: Project, rng: Random) -> str:
    frame = project.read_areas()
    suffix = rng.choice(
        [".geojson", ".shp", ".parquet", ".fgb", ".gml", ".csv", ".kml", ".vrt", ".zip"]
    )
    path = project.areas.with_suffix(suffix)
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix in (".geojson", ".shp", ".fgb"):
        crs = rng.choice([frame.crs, "EPSG:4326", None]) if suffix != ".geojson" else "EPSG:4326"
        (frame.to_crs(crs) if crs else frame.set_crs(None, allow_override=True)).to_file(path)
    elif suffix == ".vrt":
        path.write_text(
            "<OGRVRTDataSource><OGRVRTLayer name='a'><SrcDataSource>/etc/passwd</SrcDataSource>"
            "</OGRVRTLayer></OGRVRTDataSource>"
        )
    else:
        path.write_bytes(project.areas.read_bytes())
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(path.read_bytes(), rng))
    data = project.read_config()
    data["areas"] = {"path": path.name, "id": "code"}
    project.write_config(data)
    return f"areas as {suffix}"


@mutation("boundaries")
def a_strange_geojson(project: Project, rng: Random) -> str:
    path = project.areas.with_suffix(".geojson")
    project.read_areas().to_crs("EPSG:4326").to_file(path)
    data = json.loads(path.read_text())
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(_places(data))
        try:
            _holder(data, key)[key[-1]] = any_value(rng)
        except (KeyError, TypeError, IndexError):  # an earlier change removed it
            continue
    path.write_text(json.dumps(data))
    config = project.read_config()
    config["areas"] = {"path": path.name, "id": "code"}
    project.write_config(config)
    return "values of a GeoJSON"


@mutation("boundaries")
def spoil_the_areas(project: Project, rng: Random) -> str:
    project.areas.write_bytes(spoil_bytes(project.areas.read_bytes(), rng))
    return "bytes of the areas"


# -- the rasters -----------------------------------------------------------------------------------


def _raster(project: Project, rng: Random) -> Path:
    return rng.choice([project.population, *project.covariates])


@mutation("raster")
def spoil_the_raster(project: Project, rng: Random) -> str:
    path = _raster(project, rng)
    path.write_bytes(spoil_bytes(path.read_bytes(), rng))
    return f"bytes of {path.name}"


@mutation("raster")
def strange_pixels(project: Project, rng: Random) -> str:
    path = _raster(project, rng)
    with rasterio.open(path) as file:
        values, profile = file.read(1), file.profile
    share = rng.choice([0.001, 0.1, 0.9, 1.0])
    spoilt = np.random.default_rng(rng.randrange(2**32)).random(values.shape) < share
    number = rng.choice(
        [*[n for n in NUMBERS if abs(n) < 1e301 or n != n or n in (math.inf, -math.inf)], 3.4e38]
    )
    dtype = rng.choice(["float64", "float32", "int16", "uint8", "int32", "uint16"])
    with np.errstate(all="ignore"):
        values = np.where(spoilt, float(number), values)
        if not dtype.startswith("float"):
            info = np.iinfo(dtype)
            values = np.clip(np.nan_to_num(values), info.min, info.max)
        values = values.astype(dtype)
    nodata = rng.choice([None, 0, 255, -9999, math.nan, number])
    try:
        with rasterio.open(path, "w", **{**profile, "dtype": dtype, "nodata": nodata}) as file:
            file.write(values, 1)
    except (
        ValueError,
        OverflowError,
        TypeError,
        rasterio.errors.RasterioError,
    ):  # nodata outside the type
        with rasterio.open(path, "w", **{**profile, "dtype": dtype, "nodata": None}) as file:
            file.write(values, 1)
    return f"{path.name}: {share:g} of the pixels {number!r}, {dtype}, nodata {nodata!r}"


@mutation("raster")
def a_strange_grid(project: Project, rng: Random) -> str:
    path = _raster(project, rng)
    with rasterio.open(path) as file:
        values, profile = file.read(1), file.profile
    t = profile["transform"]
    way = rng.choice(
        [
            "rotated", "south-up", "tiny", "huge", "moved", "mirrored", "one pixel", "one row",
            "sheared", "degrees",
        ]
    )  # fmt: skip
    profile["transform"] = {
        "rotated": t * Affine.rotation(rng.uniform(1, 359)),
        "south-up": t * Affine.translation(0, 30) * Affine.scale(1, -1),
        "tiny": t * Affine.scale(1e-9),
        "huge": t * Affine.scale(1e6),
        "moved": t * Affine.translation(rng.choice([1e3, 1e9]), 0),
        "mirrored": t * Affine.scale(-1, 1),
        "sheared": t * Affine.shear(20, 0),
        "degrees": Affine(0.1, 0, 45, 0, -0.1, -18),
    }.get(way, t)
    if way == "one pixel":
        values = values[:1, :1]
    elif way == "one row":
        values = values[:1]
    crs = rng.choice(
        [
            CRS, CRS, "EPSG:4326", "EPSG:3857", "EPSG:3031", "EPSG:4978", None,
            'LOCAL_CS["x",UNIT["metre",1]]', "ESRI:54009", "EPSG:27700", "EPSG:2225",
        ]
    )  # fmt: skip
    profile |= {"crs": crs, "height": values.shape[0], "width": values.shape[1]}
    with rasterio.open(path, "w", **profile) as file:
        file.write(values, 1)
    return f"{path.name}: {way}, CRS {crs}"


@mutation("raster")
def a_strange_file(project: Project, rng: Random) -> str:
    path = _raster(project, rng)
    way = rng.choice(
        [
            "vrt", "huge", "vrt-huge", "png", "asc", "text", "empty", "vrt-self", "vrt-url",
            "fifo-like",
        ]
    )  # fmt: skip
    other = project.covariates[0]
    source = {
        "vrt": other.name,
        "vrt-huge": other.name,
        "vrt-self": path.name,
        "vrt-url": "/vsicurl/http://127.0.0.1:1/x.tif",
    }
    size = 10**6 if way in ("vrt-huge", "huge") else 34
    if way in source:
        path.write_text(
            f'<VRTDataset rasterXSize="{size}" rasterYSize="{size}"><SRS>{CRS}</SRS>'
            "<GeoTransform>5e5,1000,0,8e6,0,-1000</GeoTransform>"
            '<VRTRasterBand dataType="Float64" band="1"><SimpleSource>'
            f'<SourceFilename relativeToVRT="1">{source[way]}</SourceFilename>'
            "<SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
        )
    elif way == "huge":
        options = {
            "driver": "GTiff",
            "width": size,
            "height": size,
            "count": 1,
            "dtype": "uint8",
            "crs": CRS,
            "transform": Affine(1, 0, 5e5, 0, -1, 8e6),
            "SPARSE_OK": True,
            "tiled": True,
            "blockxsize": 8192,
            "blockysize": 8192,
            "compress": "deflate",
            "BIGTIFF": "YES",
        }
        with rasterio.open(path, "w", **options):
            pass
    elif way == "asc":
        path.write_text(
            f"ncols 3\nnrows {rng.choice([3, -3, 10**9])}\nxllcorner 0\nyllcorner 0\n"
            "cellsize 1\n1 2 3\n"
        )
    elif way == "png":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(rng.randrange(256) for _ in range(60)))
    else:
        path.write_bytes(b"" if way == "empty" else b"not a raster\n" * 3)
    if rng.random() < 0.5 and way.startswith("vrt"):
        project.change_raster(path, path.rename(path.with_suffix(".vrt")))
    return f"{path.name}: {way}"


def spoil(project: Project, rng: Random, family: str | None = None) -> list[str]:
    """Apply one to three mutations; return the family and what each did."""
    said = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = family or rng.choice(sorted(MUTATIONS))
        chosen = rng.choice(MUTATIONS[name])
        try:
            said.append(f"{name}: {chosen.__name__}: {chosen(project, rng)}")
        except Exception as error:  # an earlier mutation left nothing to spoil
            said.append(f"{name}: {chosen.__name__}: not possible ({type(error).__name__})")
    return said
