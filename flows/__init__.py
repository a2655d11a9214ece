"""Prefect flows: they call the stage functions of ``pipeline`` and do no work themselves.

May import pipeline and geo.
"""
