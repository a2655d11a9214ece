"""Errors, progress, signals and threads: what every room uses.

Imports no other room.
"""
