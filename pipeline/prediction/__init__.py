"""The predict stage: writes rasters and tables of areas (products.py lists them).

May import pipeline.store, pipeline.cluster and what lies below them.
"""
