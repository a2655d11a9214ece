"""Grids, rasters, boundaries, tables and GeoTIFFs: all reading and writing of geodata.

May import neither models nor pipeline.
"""
