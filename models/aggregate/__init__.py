"""Models of areas whose counts are known: VBAgg and its baselines, with their objectives.

May import models.gp and the layers below it.
"""
