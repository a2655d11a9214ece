"""The fit stage: fits a model to a bag store, on threads or on a Dask cluster.

May import pipeline.store, pipeline.cluster and what lies below them.
"""
