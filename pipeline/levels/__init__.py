"""Sums by area of any level, targeting and reconciliation: consumers of the pass over tiles.

May import pipeline.products and what lies below it.
"""
