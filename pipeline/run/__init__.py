"""A run: the stages in order, each skipped while its inputs and outputs are unchanged.

May import pipeline.evaluation and what lies below it.
"""
