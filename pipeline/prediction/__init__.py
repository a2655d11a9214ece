"""The predict stage: runs the pass over the tiles and writes rasters and tables of areas.

May import pipeline.levels, pipeline.cluster and what lies below them.
"""
