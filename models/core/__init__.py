"""Bags and their blocks, the model protocol, saving and loading, errors.

Imports nothing of ours but models.backend.
"""
