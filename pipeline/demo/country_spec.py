"""Sizes of simulated countries, and the covariates that each publishes."""

from __future__ import annotations

from dataclasses import dataclass, field

from affine import Affine

WGS84 = "EPSG:4326"
KM_PER_DEG = 111.195


@dataclass(frozen=True)
class CovariateSpec:
    """How a covariate is published.

    Attributes
    ----------
    description, unit : str
    coarser : int
        Its pixel's side in pixels of the population grid; -2 is half a pixel.
    noise : float
        Standard deviation of the measurement error, as a share of the field's own.
    gaps : bool
        Whether pixels are missing on land.
    projected : bool
        Published in the sinusoidal projection instead of longitude and latitude.
    dtype : str
    transform : str
        What the configuration asks to be done with it.
    """

    description: str
    unit: str
    coarser: int = 1
    noise: float = 0.05
    gaps: bool = False
    projected: bool = False
    dtype: str = "float32"
    transform: str = "none"


LAYERS = {
    "elevation": CovariateSpec("Elevation above the sea", "m", -2, 0.005, gaps=True, dtype="int16"),
    "temperature": CovariateSpec("Mean temperature of the year", "degC", 5),
    "rainfall": CovariateSpec("Rain in a year", "mm", 6, 0.08, transform="log1p"),
    "evi": CovariateSpec("Enhanced vegetation index", "1", noise=0.12, projected=True),
    "travel_time": CovariateSpec("Travel time to the nearest town", "min", 1, 0.02, transform="log1p"),
    "distance_to_water": CovariateSpec("Distance to a river or the sea", "km", 1, 0.0, transform="log1p"),
    "slope": CovariateSpec("Slope", "degrees", 1, 0.03, transform="log1p"),
    "topographic_wetness": CovariateSpec("Topographic wetness index", "1", 1, 0.05),
    "temperature_range": CovariateSpec("Mean daily range of temperature", "degC", 5),
    "lst_day": CovariateSpec("Land surface temperature by day", "degC", 1, 0.08, gaps=True),
    "lst_night": CovariateSpec("Land surface temperature by night", "degC", 1, 0.08, gaps=True),
    "rainfall_seasonality": CovariateSpec("Variation of rain between months", "%", 6, 0.08),
    "aridity": CovariateSpec("Rain over potential evaporation", "1", 4, transform="log1p"),
    "humidity": CovariateSpec("Relative humidity", "%", 12),
    "tree_cover": CovariateSpec("Tree cover", "%", 1, 0.1),
    "cropland": CovariateSpec("Cropland", "%", 3, 0.1),
    "soil_clay": CovariateSpec("Clay in the topsoil", "%", 2, 0.15),
    "night_lights": CovariateSpec("Lights at night", "nW cm-2 sr-1", 1, 0.02, transform="log1p"),
}


@dataclass(frozen=True)
class CountrySpec:
    """The size of a simulated country.

    Attributes
    ----------
    shape : (n_row, n_col) of the population grid
    pixel_deg : float
    n_land : int
        Pixels of the country.
    n_area : int
    n_town : int
        Towns on the map, the neighbours' included.
    people : float
    covariates : tuple of str
    n_inducing : int
    n_instance : int, optional
        Exact number of pixels in all areas that have people and covariates, a pixel on a border
        counted for each side; pixels with the fewest people lose them until it is met.
    detail : int
        Relief and roads start on pixels this many times larger.
    corner_deg : (west, north)
    """

    shape: tuple[int, int]
    pixel_deg: float
    n_land: int
    n_area: int
    n_town: int
    people: float
    covariates: tuple[str, ...] = field(default=tuple(LAYERS))
    n_inducing: int = 200
    n_instance: int | None = None
    detail: int = 1
    corner_deg: tuple[float, float] = (30.0, -1.0)

    @property
    def transform(self) -> Affine:
        """The population grid's, from pixels to degrees."""
        west, north = self.corner_deg
        return Affine(self.pixel_deg, 0.0, west, 0.0, -self.pixel_deg, north)


SIZES = {
    "small": CountrySpec(
        (190, 215), 1 / 24, 20_500, 120, 36, 9e6, covariates=tuple(LAYERS)[:6], n_inducing=200
    ),
    # As many areas, pixels and covariates as the malaria data of Law et al. (2018), section 4.3.
    "country": CountrySpec(
        (1240, 1400), 1 / 120, 1_025_000, 957, 150, 30e6, n_inducing=576, n_instance=1_044_683,
        detail=4,
    ),
}  # fmt: skip
