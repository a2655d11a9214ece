"""The predict stage: writes rasters, tables of areas and the preview (products.py lists them).

May import pipeline.store, pipeline.cluster and what lies below them.
"""
