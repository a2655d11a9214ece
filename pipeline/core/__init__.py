"""Errors, progress, signals, threads, JSON values and the hash of the code, for all of pipeline.

Imports no other sub-package of pipeline; may import geo and models.
"""
