"""Versions of a map: gates, publication, rollback, notification, metrics.

May import pipeline.run and what lies below it.
"""
