"""The report stage: one self-contained page and the pictures of a finished run.

May import pipeline.evaluation, pipeline.prediction and what lies below them.
"""
