"""Errors, progress, signals, threads and the hash of the code: what every room uses.

Imports no other room.
"""
