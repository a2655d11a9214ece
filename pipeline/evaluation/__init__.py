"""The evaluate stage: cross-validation, scores, comparison with a known truth.

May import pipeline.prediction, pipeline.training, pipeline.ingest and what lies below them.
"""
