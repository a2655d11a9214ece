"""The ingest stage: checks and profiles the inputs, aligns them to one grid, writes the bag store.

May import pipeline.store, pipeline.cluster and what lies below them.
"""
