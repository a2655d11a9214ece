"""The fit stage: a model fitted to a bag store, here or on a Dask cluster.

May import pipeline.store, pipeline.cluster and what lies below them.
"""
