"""Errors, registries of formats, columns, spelling, addresses and trust: what all of geo stands on.

Imports no other room.
"""
