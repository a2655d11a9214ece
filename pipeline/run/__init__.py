"""Run the stages in order; skip a stage whose inputs and outputs are unchanged.

May import pipeline.evaluation and what lies below it.
"""
