"""Scheduled updates: detection of new counts, recovery and retries of runs.

May import pipeline.publishing, pipeline.run and what lies below them.
"""
