"""Climate, vegetation and other covariates of the simulated country."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from pipeline.demo.population import PopulationMap
from pipeline.demo.terrain import Array, Terrain, fractal_noise, named_rng


def rainfall(terrain: Terrain, seed: int) -> Array:
    """Simulate rain in a year, mm: from the sea to the east, onto slopes that face it.

    Parameters
    ----------
    terrain : Terrain
    seed : int

    Returns
    -------
    (n_row, n_col) float64
    """
    shape, km = terrain.land.shape, terrain.pixel_km
    blur = max(1.0, 14 / km)
    smooth = ndimage.gaussian_filter(terrain.elevation, blur)
    facing = ndimage.gaussian_filter(-np.gradient(smooth, km, axis=1), 8 / km)  # m per km, from E
    from_north = np.linspace(1, 0, shape[0])[:, None]
    log_rain = 6.45 + 0.55 * from_north + 0.45 * np.exp(-terrain.coast_km / 90)
    log_rain = log_rain + np.clip(0.045 * facing, -0.7, 0.7) + 0.12 * np.clip(smooth / 1000, 0, 2)
    log_rain += 0.28 * fractal_noise(shape, named_rng(seed, "rain"), hurst=0.9, longest=500 / km)
    return np.exp(np.clip(log_rain, 5.3, 7.9))


def temperature(terrain: Terrain, seed: int, south_deg: Array) -> Array:
    """Simulate the mean temperature of the year, degrees C, from height and latitude.

    Parameters
    ----------
    terrain : Terrain
    seed : int
    south_deg : (n_row,) float64, degrees south of the equator

    Returns
    -------
    (n_row, n_col) float64
    """
    noise = fractal_noise(
        terrain.land.shape, named_rng(seed, "temperature"), longest=300 / terrain.pixel_km
    )
    sea_level = 28.2 - 0.16 * south_deg[:, None]
    inland = 0.9 * (1 - np.exp(-terrain.coast_km / 120))
    return sea_level + inland - 0.0062 * terrain.elevation + 0.35 * noise


def environment(
    terrain: Terrain, settled: PopulationMap, rain: Array, warmth: Array, seed: int
) -> dict[str, Array]:
    """Derive every covariate from terrain, climate and people.

    Parameters
    ----------
    terrain : Terrain
    settled : PopulationMap
    rain : (n_row, n_col) float64, mm in a year
    warmth : (n_row, n_col) float64, degrees C
    seed : int

    Returns
    -------
    dict of name to (n_row, n_col) float64: the true fields, before any sensor saw them
    """
    km, shape = terrain.pixel_km, terrain.land.shape

    def noise(name: str, hurst: float = 0.5, longest_km: float = 150.0) -> Array:
        rng = named_rng(seed, name)
        return fractal_noise(shape, rng, hurst=hurst, longest=max(4.0, longest_km / km))

    tangent = np.tan(np.radians(np.maximum(terrain.slope, 0.05)))
    wetness = np.log(np.maximum(terrain.flow, km**2) / km / tangent)
    # Valley floors are wet beyond the one pixel that the river itself takes.
    wetness = 0.5 * wetness + 0.5 * ndimage.gaussian_filter(wetness, max(0.7, 1.5 / km))
    potential = 900 + 60 * (warmth - 18)
    aridity = np.clip(rain / np.maximum(potential, 250), 0.05, 3)
    town = settled.people / km**2
    built = town / (town + 2500)
    water = np.exp(-terrain.water_km / max(4.0, 1.2 * km))
    green = -1.0 + 1.7 * np.log(aridity / 0.55) + 0.7 * water + 0.5 * noise("green")
    green -= 0.12 * np.clip(16 - warmth, 0, None)
    evi = 0.06 + 0.52 / (1 + np.exp(-green)) * (1 - 0.8 * built)
    settled_land = np.log1p(town)
    crop = -1.4 + 0.55 * settled_land - 0.12 * terrain.slope + 0.7 * noise("crop", 0.3, 60)
    cropland = 100 / (1 + np.exp(-crop)) * (1 - built)
    trees = -0.6 + 1.1 * green + 0.08 * terrain.slope - 0.25 * settled_land + 0.5 * noise("trees")
    tree_cover = (100 - cropland) / (1 + np.exp(-trees))
    season = 55 + 22 * np.log(1100 / rain) + 6 * noise("season", 0.9, 400)
    span = 9 + 4 * (1 - np.exp(-terrain.coast_km / 150)) - 3 * np.log(aridity) + 0.5 * noise("span")
    humidity = 62 + 14 * np.tanh(np.log(aridity)) + 10 * np.exp(-terrain.coast_km / 80)
    lights = 60 * built**1.2 + 8 * np.exp(-settled.travel_min / 15)
    return {
        "elevation": terrain.elevation,
        "temperature": warmth,
        "rainfall": rain,
        "evi": evi,
        "travel_time": settled.travel_min,
        "distance_to_water": terrain.water_km,
        "slope": terrain.slope,
        "topographic_wetness": wetness,
        "temperature_range": span,
        "lst_day": warmth + 0.6 * span - 9 * (evi - 0.3) + 2.5 * built + 0.5 * noise("day", 0.3),
        "lst_night": warmth - 0.45 * span + 1.5 * built + 0.4 * noise("night", 0.3),
        "rainfall_seasonality": np.clip(season, 10, 140),
        "aridity": aridity,
        "humidity": np.clip(humidity + 2 * noise("humid", 0.8, 300), 15, 98),
        "tree_cover": np.clip(tree_cover, 0, 100),
        "cropland": np.clip(cropland, 0, 100),
        "soil_clay": np.clip(28 + 9 * noise("clay", 0.4, 200) - 0.4 * terrain.slope, 3, 70),
        "night_lights": lights,
    }
