"""Tables of instances: imported into a bag store, and classifiers fitted to it.

May import pipeline.run and what lies below it.
"""
