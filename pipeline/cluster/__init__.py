"""The processors of a run: this machine, Dask clusters, Kubernetes, gateways.

May import pipeline.config and what lies below it.
"""
