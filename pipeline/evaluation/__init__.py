"""The evaluate stage: cross-validates, scores, and compares with a known truth.

May import pipeline.products, pipeline.training, pipeline.ingest and what lies below them.
"""
