"""The ingest stage: inputs opened and checked, brought to one grid, gathered into bags.

May import pipeline.store, pipeline.cluster and what lies below them.
"""
