"""The estimator's base class, the training loop, optimisers and sums over blocks.

May import models.backend and models.core.
"""
