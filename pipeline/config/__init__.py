"""The configuration of a run: schema, reader, and the models that it can name.

May import pipeline.storage and what lies below it.
"""
