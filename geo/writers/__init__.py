"""GeoTIFFs, GeoPackages, their styles and colours, and QGIS projects.

May import geo.sources and the layers below it.
"""
