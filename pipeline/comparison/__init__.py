"""Comparison of two runs, or of two versions of a map: by pixel, by area and in total.

May import pipeline.run, pipeline.prediction and what lies below them.
"""
