"""Repair the polygons of areas: mend rings, merge parts that share an id, drop what is empty.

Nothing is snapped, and no gap is closed. The report lists every change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely

from geo.core.errors import name_first

#: Relative change of an area's size that the report names.
CHANGE_REPORTED = 0.02
_EQUAL_AREA = "EPSG:6933"


@dataclass
class Repairs:
    """What :func:`repair_areas` did; empty before.

    Attributes
    ----------
    mended : list of str
        Features with an invalid polygon that was mended.
    merged : dict of str to int
        Areas that several features shared, with the number of features.
    dropped : list of str
        Features without a geometry or without a surface.
    differing : dict of str to list of str
        Attributes that differ between the features of an area, with the ids of these areas; the
        first feature's value is kept. A feature without a value differs from none.
    resized : dict of str to (float, float)
        Areas whose size changed by more than `CHANGE_REPORTED`: km2 before and after.
    km2 : (float, float)
        Size of all areas before and after, km2. That of a ring that crosses itself is the
        difference of its loops.
    """

    mended: list[str] = field(default_factory=list)
    merged: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    differing: dict[str, list[str]] = field(default_factory=dict)
    resized: dict[str, tuple[float, float]] = field(default_factory=dict)
    km2: tuple[float, float] = (0.0, 0.0)

    def __bool__(self) -> bool:
        """Return whether anything was changed."""
        return bool(self.mended or self.merged or self.dropped)

    def lines(self) -> list[str]:
        """Return one line for each kind of change, none if nothing was changed."""
        found = []
        if self.mended:
            found.append(f"mended {_many(self.mended, 'invalid polygon')}")
        if self.merged:
            which = [f"{area} ({n})" for area, n in self.merged.items()]
            n_feature = sum(self.merged.values())
            found.append(f"merged {n_feature} features into {_many(which, 'area')}")
        if self.dropped:
            found.append(f"dropped {_many(self.dropped, 'feature')} without a surface")
        for column, areas in self.differing.items():
            found.append(
                f"kept the first {column!r} of {_many(areas, 'area')}, whose features differ"
            )
        if self.resized:
            which = [
                f"{area} {before:.4g} -> {after:.4g} km2"
                for area, (before, after) in self.resized.items()
            ]
            share = f"{100 * CHANGE_REPORTED:g} %"
            found.append(f"warning: size changed by more than {share}: {_many(which, 'area')}")
        if found:
            found.append(f"all areas: {self.km2[0]:,.6g} km2 before, {self.km2[1]:,.6g} after")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON; empty if nothing was changed."""
        if not self:
            return {}
        return {
            "mended": self.mended,
            "merged": self.merged,
            "dropped": self.dropped,
            "differing": self.differing,
            "resized": {area: list(sizes) for area, sizes in self.resized.items()},
            "km2_before": self.km2[0],
            "km2_after": self.km2[1],
        }


def repair_areas(
    frame: gpd.GeoDataFrame, ids: pd.Series, labels: list[str], repairs: Repairs
) -> tuple[gpd.GeoDataFrame, pd.Series]:
    """Mend invalid polygons, drop empty features and merge features that share an id.

    Parameters
    ----------
    frame : GeoDataFrame
        Features as read. Those that are no polygons stay as they are.
    ids : (n_feature,) Series
        Id of each feature as text, None where missing; such features are not merged.
    labels : list of str
        Name of each feature in the report.
    repairs : Repairs
        Filled with what was done.

    Returns
    -------
    frame : GeoDataFrame
        One row an area, in the order of the first feature of each, whose index it has; each
        attribute is the first that is given.
    ids : Series
        With the same index.
    """
    shapes = np.asarray(frame.geometry.array)
    keys = [text if text is not None else label for text, label in zip(ids, labels, strict=True)]
    before = _sizes(shapes, frame.crs)
    mended, was_invalid = _mend(shapes)
    repairs.mended += [
        labels[i] for i in np.flatnonzero(was_invalid) if labels[i] not in repairs.mended
    ]
    polygonal = np.isin(shapely.get_type_id(mended), (3, 6))
    absent = shapely.is_missing(mended) | shapely.is_empty(mended)
    absent |= polygonal & ~(shapely.area(mended) > 0) & are_finite(mended)
    repairs.dropped += [labels[i] for i in np.flatnonzero(absent)]
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(~absent).tolist():
        rows.setdefault(keys[row], []).append(row)
    whole, filled = mended.copy(), []
    columns = [name for name in frame.columns if name != frame.geometry.name]
    for area, at in rows.items():
        if len(at) == 1 or not polygonal[at].all():
            continue
        whole[at[0]] = shapely.union_all(mended[at])
        repairs.merged[area] = len(at)
        for name in columns:
            given = [row for row in at if not _is_missing(frame[name].iloc[row])]
            if len({str(frame[name].iloc[row]) for row in given}) > 1:
                repairs.differing.setdefault(str(name), []).append(area)
            if given and given[0] != at[0]:
                filled.append((at[0], name, frame[name].iloc[given[0]]))
    first = [
        row
        for area, at in rows.items()
        for row in (at[:1] if area in repairs.merged or len(at) == 1 else at)
    ]
    first.sort()
    after = _sizes(whole[first], frame.crs)
    for row, size in zip(first, after.tolist(), strict=True):
        name = keys[row]
        old = float(before[rows[name]].sum() if name in repairs.merged else before[row])
        if abs(size - old) > CHANGE_REPORTED * max(size, old):
            repairs.resized[name] = (old, size)
    repairs.km2 = (float(np.nansum(before)), float(np.nansum(after)))
    result = frame.iloc[first].copy()
    for row, name, value in filled:
        result.loc[frame.index[row], name] = value
    result = result.set_geometry(gpd.GeoSeries(whole[first], index=result.index, crs=frame.crs))
    return result, ids.iloc[first]


def are_finite(shapes: np.ndarray) -> np.ndarray:
    """Return whether all coordinates of each shape are finite numbers."""
    at, which = shapely.get_coordinates(shapes, return_index=True)
    finite = np.ones(len(shapes), bool)
    finite[which[~np.isfinite(at).all(axis=1)]] = False
    return finite


def _mend(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return valid polygons, and which were not."""
    kinds = shapely.get_type_id(shapes)
    collection = kinds == 7
    polygonal = (kinds == 3) | (kinds == 6) | collection
    # What is not a number cannot be mended: it is reported as it is.
    wrong = polygonal & (~shapely.is_valid(shapes) | collection) & are_finite(shapes)
    result = shapes.copy()
    for row in np.flatnonzero(wrong):
        # "structure" joins parts that overlap and keeps both loops of an eight; "linework", the
        # default, makes a hole of every overlap.
        fixed = shapely.make_valid(shapes[row], method="structure", keep_collapsed=False)
        parts = [
            part
            for part in shapely.get_parts(shapely.get_parts(fixed))
            if part.geom_type == "Polygon"
        ]
        if parts or not collection[row]:  # a collection without polygons is reported as it is
            result[row] = shapely.union_all(parts) if parts else shapely.Polygon()
    return result, wrong & (result != shapes)


def _sizes(shapes: np.ndarray, crs: Any) -> np.ndarray:
    """Return the surface of each feature, km2; in squared units of the file without a CRS."""
    if crs is None:
        return shapely.area(shapes)
    if crs.is_projected:
        return shapely.area(shapes) * crs.axis_info[0].unit_conversion_factor ** 2 / 1e6
    plane = gpd.GeoSeries(shapes, crs=crs).to_crs(_EQUAL_AREA)
    sizes = shapely.area(np.asarray(plane.array)) / 1e6
    return np.where(np.isfinite(sizes), sizes, 0.0)


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or value != value


def _many(which: list[str], noun: str) -> str:
    return f"{len(which)} {noun}{'' if len(which) == 1 else 's'} ({name_first(which)})"
