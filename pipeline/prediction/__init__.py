"""The predict stage: rasters, tables of areas, the preview (products.py lists them).

May import pipeline.store, pipeline.cluster and what lies below them.
"""
