"""Sources of values on a grid, boundaries, what opens them, and resampling to a grid.

May import geo.grids and geo.core.
"""
