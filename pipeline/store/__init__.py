"""The bag store and the aligned grid: ingest writes them once, every later stage reads them.

May import pipeline.config and what lies below it.
"""
