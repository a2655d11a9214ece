"""Training and prediction in the tables of CHAP, DHIS2's climate and health platform.

May import pipeline.storage and what lies below it.
"""
