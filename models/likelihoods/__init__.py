"""Likelihoods, links, area effects and the predictions they give: each likelihood describes itself.

May import models.backend and models.core.
"""
