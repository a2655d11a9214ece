"""A case of the corpus: what spoils a sound project, and what must be said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from tests.fuzz.project import Project


@dataclass(frozen=True)
class Error:
    """A line ``error: place: found; remedy``; each is a part of the text that must stand there."""

    place: str
    found: str
    remedy: str


@dataclass(frozen=True)
class Doubt:
    """A suspicion with this code about this place; ``found`` is a part of its text."""

    code: str
    place: str
    found: str = ""


@dataclass(frozen=True)
class Note:
    """A text of the output of an accepted input."""

    text: str


Expected = Error | Doubt | Note


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes
    ----------
    name, family : str
    spoil : callable
        Changes the files of a sound project.
    expected : tuple of Error, Doubt or Note
        All errors and all suspicions, no others; empty for an input that only looks wrong.
    also_ingest : bool
        Whether ingest must say the same errors; of a family's cases, the first with errors alone.
    """

    name: str
    family: str
    spoil: Callable[[Country], None]
    expected: tuple[Expected, ...]
    also_ingest: bool = True


CASES: dict[str, Case] = {}


def case(
    family: str, *expected: Expected, name: str = "", also_ingest: bool = True
) -> Callable[..., Any]:
    """Register a case; its name is the function's by default."""

    def add(spoil: Callable[[Country], None]) -> Callable[[Country], None]:
        title = f"{family}/{name or spoil.__name__}"
        assert title not in CASES, title
        wrong = any(isinstance(each, Error) for each in expected)
        told = {each.family for each in CASES.values() if each.also_ingest}
        again = also_ingest and wrong and family not in told
        CASES[title] = Case(title, family, spoil, expected, again)
        return spoil

    return add


class Country(Project):
    """The sound project, with what cases need to spoil it."""

    def values(self, path: Path) -> np.ndarray:
        """Return the values of a raster."""
        with rasterio.open(path) as file:
            read: np.ndarray = file.read(1)
        return read

    def raster(self, path: Path, values: np.ndarray, **options: Any) -> None:
        """Write a raster as the sound one, with other options."""
        with rasterio.open(self.population) as file:
            profile = file.profile
        sizes = {"width": values.shape[1], "height": values.shape[0]}
        with rasterio.open(path, "w", **{**profile, **sizes, **options}) as file:
            file.write(values, 1)

    def table(self, rows: list[str], header: str = "code,cases", **options: Any) -> None:
        """Write the table of counts."""
        text = "\n".join([header, *rows]) + "\n"
        self.counts.write_text(text, **{"encoding": "utf-8", **options})

    def rows(self) -> list[str]:
        """Return the rows of the sound table."""
        return self.counts.read_text().splitlines()[1:]

    def cell(self, area: str, text: str) -> None:
        """Set the count of an area."""
        self.table([f"{area},{text}" if row.startswith(area) else row for row in self.rows()])

    def shapes(self, change: Callable[[list[Any]], Any]) -> None:
        """Change the polygons in place."""
        frame = self.read_areas()
        shapes = list(frame.geometry)
        change(shapes)
        self.write_areas(frame.set_geometry(shapes, crs=frame.crs))

    def codes(self, change: dict[str, Any]) -> None:
        """Change ids of areas."""
        frame = self.read_areas()
        frame["code"] = [change.get(code, code) for code in frame["code"]]
        self.write_areas(frame)

    def rename_areas(self, names: dict[str, str]) -> None:
        """Change ids in areas and table alike."""
        self.codes(names)
        rows = [row.split(",") for row in self.rows()]
        self.table([f'"{names.get(code, code)}",{count}' for code, count in rows])

    def text(self, old: str, new: str) -> None:
        """Replace a text of the configuration."""
        text = self.config.read_text(encoding="utf-8")
        assert old in text, text
        self.config.write_text(text.replace(old, new), encoding="utf-8")

    def add(self, text: str) -> None:
        """Add lines to the configuration."""
        self.config.write_text(self.config.read_text(encoding="utf-8") + text, encoding="utf-8")

    def covariate(self, name: str = "wave", **keys: Any) -> None:
        """Set keys of a covariate."""
        data = self.read_config()
        data["covariates"][name] |= keys
        self.write_config(data)
