"""The command line `disagg`.

May import every other sub-package of pipeline.
"""
