"""Area-to-point Poisson kriging by pyinterpolate, with its order corrected.

Release 1.2.1 lists the semivariances of each point with each neighbouring area point by point, and
reads the list as if it went area by area, so that a pixel gets those of others. As it is,
its log rates correlate .3 and .2 with the truth on the first two grids, and its cases add up to
less than none on the next. It also leaves the predicted area's own count out. Here the list is read
in its order, and each area's pixels are scaled to give back its count, as area-to-point kriging
that knows the count would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.grids import Grid
from benchmarks.peer_answers import FLOOR, Answer, normal
from benchmarks.peer_maps import METRES, area_of, base_rate, frames, place_of

NEIGHBOURS = 8  # as in the library's examples
LAG = 3.0  # pixels: about half of an area's width
ITERATIONS = 5  # of the deconvolution, at most, as there
VARIOGRAMS = ["spherical", "exponential"]
LEAST_SD = 0.01  # of the mean rate: where kriging gives a variance of zero or less


def kriging(grid: Grid) -> Answer:
    """Krige by ``Deconvolution``, then ``smooth_blocks``; scale to the areas' counts.

    People are the point support. Rates are per the mean population of an area, not per person: the
    library adds the mean rate to the diagonal as the counts' variance, which is right in this unit
    for an area of mean population. Lags are of 3 km up to half the country, with 8 neighbours and
    at most five iterations, as in its examples. The variogram is spherical or exponential: its own
    choice, ``safe``, has a linear one with a sill, which is no variogram of a plane, and weights
    explode.
    """
    from pyinterpolate.core.data_models.poisson_kriging import PoissonKrigingInput

    name = "point_to_block_ps_semivariance_array"
    released: Callable[..., Any] = getattr(PoissonKrigingInput, name)
    setattr(PoissonKrigingInput, name, semivariances)
    try:
        mean, sd = kriged(grid)
    finally:
        setattr(PoissonKrigingInput, name, released)
    area = area_of(grid)
    mean = np.maximum(mean, FLOOR * base_rate(grid))
    factor = (grid.cases / np.bincount(area, mean * grid.people))[area]
    return normal(mean * factor, np.maximum(sd * factor, LEAST_SD * base_rate(grid)))


def kriged(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Return means and deviations of the pixels' rates, by the library as it is at the moment."""
    from pyinterpolate import Blocks, Deconvolution, PointSupport, smooth_blocks

    areas, pixels = frames(grid)
    unit = float(grid.people.sum() / grid.cases.size)
    areas["rate"] *= unit
    blocks = Blocks(
        ds=areas,
        value_column_name="rate",
        index_column_name="area",
        geometry_column_name="geometry",
    )
    support = PointSupport(
        blocks=blocks,
        points=pixels[["people", "geometry"]].set_geometry(pixels.centroid),
        points_value_column="people",
        points_geometry_column="geometry",
        verbose=False,
    )
    half = METRES * float(np.sqrt(grid.people.size)) / 2
    fitted = Deconvolution(verbose=False)
    fitted.fit(
        blocks=blocks,
        point_support=support,
        step_size=LAG * METRES,
        max_range=half,
        models_group=VARIOGRAMS,
    )
    fitted.transform(max_iters=ITERATIONS)
    told = smooth_blocks(
        fitted.final_theoretical_model,
        support,
        NEIGHBOURS,
        verbose=False,
        raise_when_negative_prediction=False,
        raise_when_negative_error=False,
    )
    place = place_of(grid, told.geometry.x.to_numpy(), told.geometry.y.to_numpy())
    if not np.array_equal(np.sort(place), np.arange(grid.people.size)):
        raise SystemExit("error: pyinterpolate did not return each pixel once")
    area = area_of(grid)
    # What it gives for a point is the rate times the point's share of its area's people.
    share = (grid.people / np.bincount(area, grid.people)[area])[place]
    mean, sd = np.empty(place.size), np.empty(place.size)
    mean[place] = told["reg.est"].to_numpy() / share / unit
    sd[place] = told["reg.err"].to_numpy() / unit
    return mean, np.maximum(sd, LEAST_SD * base_rate(grid))


def semivariances(data: Any) -> np.ndarray:
    """Return semivariances of each neighbour with each point, in the order of the points.

    Parameters
    ----------
    data : PoissonKrigingInput
        Its list goes through the points in the order of their coordinates, each with all
        neighbours in the order of their names.
    """
    told = data.point_to_block_ps_semivariance().to_numpy()
    points = data.kriging_input[[data.ng_ux_col, data.ng_uy_col]].drop_duplicates().to_numpy()
    order = np.lexsort((points[:, 1], points[:, 0]))
    found = np.empty((told.size // data.unknown_n, data.unknown_n))
    found[:, order] = told.reshape(data.unknown_n, -1).T
    return found
