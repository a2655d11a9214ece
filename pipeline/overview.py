"""What the inputs are, in a line each: shown when a check finds nothing wrong."""

from __future__ import annotations

from geo.boundary import read_areas
from geo.counts import read_counts
from geo.errors import Problem
from geo.raster import RasterSource
from pipeline.config import Config


def describe_inputs(config: Config) -> dict[str, str]:
    """Describe each input of a configuration that has been checked.

    Parameters
    ----------
    config : Config
        The run's.

    Returns
    -------
    dict of str to str
        By configuration key.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    areas = read_areas(config.areas.path, config.areas.layer, config.areas.id, "areas", problems)
    if areas is not None:
        found["areas"] = f"{len(areas):,} areas, {areas.crs.to_string()}"
        counts = read_counts(
            config.counts.path,
            areas,
            config.counts.id or config.areas.id,
            config.counts.value,
            problems,
        )
        if counts is not None:
            found["counts"] = f"{counts.sum():,.0f} in all, {counts.min():g} to {counts.max():g}"
    if config.population is not None:
        found["population"] = _describe_raster(RasterSource(config.population.path))
    for name, covariate in config.covariates.items():
        source = RasterSource(covariate.path, covariate.band)
        found[f"covariates.{name}"] = _describe_raster(source)
    return found


def _describe_raster(source: RasterSource) -> str:
    n_row, n_col = source.shape
    unit = f", {source.unit}" if source.unit else ""
    crs = "no CRS"
    if source.crs is not None:
        authority = source.crs.to_authority()
        crs = ":".join(authority) if authority else source.crs.name
    return f"{n_row} x {n_col} pixels, {crs}{unit}"
