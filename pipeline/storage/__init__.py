"""Where bytes lie: object stores, atomic commits, locks, fingerprints, copies of inputs.

May import pipeline.core.
"""
