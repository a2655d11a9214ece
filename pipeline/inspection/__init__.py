"""What comes before a run: a page of the inputs, mends of a configuration, one from a folder.

May import pipeline.reporting, pipeline.ingest and what lies below them.
"""
