"""What makes a finished run a dataset: its STAC catalogue and its QGIS project.

May import pipeline.evaluation and what lies below it.
"""
