"""The command line `disagg`.

May import every other room.
"""
