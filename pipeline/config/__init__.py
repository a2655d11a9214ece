"""The configuration of a run: its schema, how it is read, and the models that it names.

May import pipeline.storage and what lies below it.
"""
