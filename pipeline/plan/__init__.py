"""Estimates pixels, memory, disk and time of a run from the headers of its inputs.

May import pipeline.run and what lies below it.
"""
