"""Bags and their blocks, the model protocol, saving and loading, errors.

Imports no other room.
"""
