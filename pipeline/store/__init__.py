"""The bag store and the aligned grid: written once by ingest, read by every later stage.

May import pipeline.config and what lies below it.
"""
