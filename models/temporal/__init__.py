"""Space and time in one model: Markov kernels in time, filter and smoother, fit, draws, updates.

May import models.aggregate, models.gp, models.training, models.likelihoods and the layers below
them.
"""
