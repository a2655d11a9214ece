"""Updates on a schedule: new counts noticed, runs that recover and try again.

May import pipeline.publishing, pipeline.run and what lies below them.
"""
