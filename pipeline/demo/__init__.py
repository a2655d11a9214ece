"""Simulates a country whose true rate is known.

May import geo, but no other part of pipeline.
"""
