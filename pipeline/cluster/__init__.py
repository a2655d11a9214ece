"""Opens the workers of a run: on this machine, a Dask cluster, Kubernetes or a gateway.

May import pipeline.config and what lies below it.
"""
