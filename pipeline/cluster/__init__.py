"""Opens the workers of a run: on this machine, a Dask cluster, Kubernetes, a gateway or a queue.

May import pipeline.config and what lies below it.
"""
