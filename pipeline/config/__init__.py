"""The configuration of a run: schema, reader, and the models that it can name.

May import pipeline.responses, pipeline.storage and what lies below them.
"""
