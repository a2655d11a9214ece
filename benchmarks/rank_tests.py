"""Tests that ranks are uniform, one a country or many, and a picture of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

N_BIN = 10


def rank_of(truth: Any, draws: np.ndarray, rng: np.random.Generator, weight: Any = None) -> Any:
    """Return the rank of a truth among draws, scaled to (0, 1): uniform if calibrated.

    Parameters
    ----------
    truth : (...) array
    draws : (n_draws, ...) array
    rng : numpy Generator
        Places the truth between two draws; ties are broken at random.
    weight : (n_draws,) array, optional
        Adding to 1; equal where not given.
    """
    n_draws = draws.shape[0]
    share = np.full(n_draws, 1.0 / n_draws) if weight is None else np.asarray(weight)
    shuffled = rng.random(draws.shape)
    below = (draws < truth) | ((draws == truth) & (shuffled < 0.5))
    inside = np.tensordot(share, below.astype(np.float64), axes=1) * n_draws / (n_draws + 1)
    return inside + rng.random(np.shape(truth)) / (n_draws + 1)


def histogram(u: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """Return the share of ``u`` (n,) in each of :data:`N_BIN` equal bins."""
    counts = np.histogram(u, bins=N_BIN, range=(0.0, 1.0), weights=weight)[0]
    return np.asarray(counts / counts.sum())


def uniform_ranks(u: np.ndarray) -> dict[str, float]:
    """Test ranks of independent countries, (n_country,) in (0, 1), for uniformity.

    Returns
    -------
    dict
        ``p``: of the chi-square test over :data:`N_BIN` bins. ``bias_z``: mean of the ranks less
        1/2, in standard errors (below 0: the posterior is above the truth). ``spread``: root mean
        square of the ranks about 1/2, over that of a uniform variable (above 1: the posterior is
        too narrow or biased), with its standard error.
    """
    counts = np.histogram(u, bins=N_BIN, range=(0.0, 1.0))[0]
    n = u.size
    spread = float(np.sqrt(12.0 * ((u - 0.5) ** 2).mean()))
    return {
        "n": n,
        "p": float(stats.chisquare(counts).pvalue),
        "bias_z": float((u.mean() - 0.5) * np.sqrt(12.0 * n)),
        "spread": spread,
        # Var (U - 1/2)^2 = 1/180, by the delta method.
        "spread_se": float(12.0 * np.sqrt(1.0 / 180.0 / n) / 2.0),
        "histogram": counts.tolist(),
    }


def uniform_shares(shares: np.ndarray) -> dict[str, float]:
    """Test many dependent ranks of each country by their histograms (n_country, n_bin).

    Hotelling's test that the mean histogram is flat: countries are independent, ranks within one
    are not. NaN where there are too few countries for a covariance.
    """
    n, n_bin = shares.shape
    mean = shares.mean(axis=0)
    found = {"n": n, "histogram": np.round(mean, 4).tolist(), "p": float("nan")}
    dim = n_bin - 1
    if n > 2 * dim:
        off = mean[:-1] - 1.0 / n_bin
        t2 = n * off @ np.linalg.pinv(np.cov(shares[:, :-1].T)) @ off
        found["p"] = float(stats.f.sf(t2 * (n - dim) / (dim * (n - 1)), dim, n - dim))
    return found


def draw_ranks(ranks: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    """Draw, a likelihood a row, histograms of ranks and differences of their distribution.

    The grey band holds 99 % of what uniform ranks give at each place.

    Parameters
    ----------
    ranks : dict of dict of (n_country,) arrays
        By likelihood, then by quantity.
    path : Path
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    columns = ("pixel", "area", "total", "slope")
    figure, axes = plt.subplots(
        len(ranks), len(columns) + 1, figsize=(12, 2.0 * len(ranks)), squeeze=False
    )
    at = np.linspace(0.0, 1.0, 201)
    for row, (name, found) in zip(axes, ranks.items(), strict=True):
        for axis, column in zip(row, columns, strict=False):
            chosen = [u for key, u in found.items() if key.split(" ")[0] == column]
            if not chosen:
                axis.set_axis_off()
                continue
            n = chosen[0].size
            low, high = stats.binom.interval(0.99, n, 1.0 / N_BIN)
            axis.axhspan(low, high, color="0.9")
            axis.hist(chosen[0], bins=N_BIN, range=(0.0, 1.0), color="#31688e")
            axis.set_title(f"{name}: {column} (n = {n})", fontsize=7)
            axis.tick_params(labelsize=6)
        axis = row[-1]
        n = max((u.size for u in found.values()), default=0)
        if n:
            low, high = stats.binom.interval(0.99, n, at)
            axis.fill_between(at, low / n - at, high / n - at, color="0.9")
        for key, u in found.items():
            below = np.searchsorted(np.sort(u), at, side="right") / max(u.size, 1)
            axis.plot(at, below - at, linewidth=0.6, label=key)
        axis.set_title("distribution less uniform, all quantities", fontsize=7)
        axis.tick_params(labelsize=6)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
