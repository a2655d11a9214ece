"""Kernels, inducing points, the sparse Gaussian process, its passes over pixels and its draws.

May import models.training, models.likelihoods and the layers below them.
"""
