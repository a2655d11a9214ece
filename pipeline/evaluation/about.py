"""The words of ``about``, the last key of ``evaluation.json``: what each term means."""

from __future__ import annotations

#: How pixels are weighted.
WAYS = ("pixels", "people")

_ABOUT_GAIN = {
    "better_than_constant": "mean over held-out areas of the log density of the response under the "
    "map less that under the constant, nats; its standard error is over areas, or over regions "
    "where regions are held out; `yes`: its 90 % interval is above 0, `no`: it is below 0, "
    "`unclear`: it has 0",
}

_ABOUT_FOLDS = {
    **_ABOUT_GAIN,
    "by_people": "each area counts by its people (its km2 without a population)",
    "area": "areas held out one at a time by weights of the posterior's draws (PSIS), or in folds, "
    "at random or by the folds file",
    "block": "compact regions held out whole (the areas' centres halved, and the halves again)",
    "leave_out": "`k`: Pareto shape of the weights, to be trusted up to `limit`; `refitted` areas "
    "and regions were left out of a fit instead; `unreliable` areas keep weights beyond it",
    "fits": "what fits without a fold: `regression` between the other areas around the map's own "
    "fit, its hyperparameters drawn anew, or `refit`, a fit of the model",
    "pit_p": "p of the uniformity of held-out areas' randomised probability integral transforms",
}

_ABOUT_TRUST = {
    "predictive_checks": "discrepancies of the data beside those of data that the model makes "
    "anew: central 90 % interval and two-sided p; `dispersion` is the mean squared residual, 1 "
    "expected; `moran` is Moran's I of the residuals",
    "support": "shares of the mapped pixels and their people; `extrapolating`: a covariate is "
    "outside its range over the fitted areas; `prior`: data_support.tif is below `below`; "
    "`wide`: rate_upper.tif is more than `times` rate_lower.tif",
    "overdispersion": "why counts vary between areas by more than chance: `modes` of the posterior "
    "of the hyperparameters with their weights; `decided`: one has more than 0.9",
    "prior_sensitivity": "means under priors raised to `powers`; `shift`: change for twice the "
    "power, posterior standard deviations; strong from 0.3 on",
}

_ABOUT_POINTS = {
    "rmse": "root of the mean squared error of the mean of the predictive distribution (of the "
    "mean logarithm for log_counts); correlation, spearman, bias and poisson_deviance are of the "
    "mean as well",
    "mae": "mean absolute error of the median of the predictive distribution, observation noise "
    "included: the number that has the least expected absolute error",
}

ABOUT_COUNTS = {
    "counts": "{area_total} of an area; expected counts are means over joint draws",
    "rates": "{total} per unit of exposure ({exposure})",
    "log_counts": "natural logarithms of counts plus one half",
    **_ABOUT_POINTS,
    "nll": "minus the log predictive density of a count, mean over areas, nats",
    "n_suppressed": "counts that are known as an interval alone: `nll` and the gain have the log "
    "probability of the interval, `coverage` and the transforms its two ends; errors, `crps` and "
    "`closed` are of the other counts",
    "nll_moments": "the same for counts whose expectation has a gamma distribution with the "
    "mean and variance of the draws: not ruled by the one draw nearest to an outlying count",
    "coverage": "share of observations inside central predictive intervals, by the randomised "
    "probability integral transform averaged over its randomisation: nominal for a calibrated "
    "prediction however small the counts; `closed` is the share inside the closed interval, "
    "which covers too much where counts are small",
    **_ABOUT_FOLDS,
    **_ABOUT_TRUST,
}

ABOUT_VALUES = {
    "counts": "{area_total} of an area; expected values are means over joint draws",
    "rates": "{totals} per unit of exposure ({exposure})",
    **_ABOUT_POINTS,
    "nll": "minus the log predictive density of a value, mean over areas, nats",
    "coverage": "share of observations inside central predictive intervals",
    **_ABOUT_FOLDS,
    **_ABOUT_TRUST,
}

ABOUT_LABELS = {
    "auc": "area under the receiver operating characteristic: probability that a positive is "
    "ranked above a negative",
    "accuracy": "share of labels that a probability above 0.5 gets right; f1 likewise",
    "log_loss": "minus the log probability of the label, mean, nats",
    "brier": "mean squared difference of probability and label",
    "calibration": "difference of the share of positives and the probability said, mean over "
    "bins of equally many",
    "constant": "the share of positives among the training areas",
    **_ABOUT_FOLDS,
}

#: By the scores of a response.
ABOUT = {"counts": ABOUT_COUNTS, "values": ABOUT_VALUES, "labels": ABOUT_LABELS}
