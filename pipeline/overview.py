"""What the inputs are, in a line each: shown when a check finds nothing wrong."""

from __future__ import annotations

from geo.boundary import read_areas
from geo.counts import read_counts, read_labels
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
        spec = config.response
        read = read_labels if config.labels is not None else read_counts
        found_y = read(spec.path, areas, spec.id or config.areas.id, spec.value, problems)
        if found_y is not None and config.labels is not None:
            found["labels"] = f"{int(found_y.sum()):,} of {len(found_y):,} areas are positive"
        elif found_y is not None:
            found["counts"] = f"{found_y.sum():,.0f} in all, {found_y.min():g} to {found_y.max():g}"
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
