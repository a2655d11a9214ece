"""Boundaries and counts from DHIS2, results to it, by its Web API or its files.

Configurations, storage and tables of runs; no model.
"""
