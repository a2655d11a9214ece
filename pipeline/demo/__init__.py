"""Simulates a country whose true rate is known.

Imports no other room but pipeline.core.
"""
