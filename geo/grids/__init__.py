"""Grids, tiles, longitudes, membership of pixels in areas, and areas on a grid.

May import geo.core.
"""
