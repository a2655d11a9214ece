"""Grids, rasters, boundaries and GeoTIFFs; knows nothing of models."""
